//! `svc`: the team daemon for coding agents.
