//! `svc`: the team daemon for coding agents, as a program.
//!
//! `ARCHITECTURE.md` lists the crates; read `svc-store/writer.rs` and
//! `svc-core/service/log/subscription.rs` first, because the rest stands on them. [`cli`] is the
//! command line and the only code that prints.
//!
//! # A command prints
//!
//! A terminal interprets what it is sent, so text of others must not reach it unchanged.
//!
//! 1. `src/cli/output/write.rs` prints. Its functions send each text through
//!    `src/cli/terminal.rs`, which shows control characters as symbols. A function prints one
//!    line; `block` and `notes` print several.
//! 2. `exact` prints bytes for programs: completion scripts, unit files, the protocol of
//!    `svc stdio`. `styled` prints text that is harmless already and has the daemon's own colours.
//!    `tests/it/tidy/mod.rs` lists the files that use either.
//! 3. `src/cli/top/team.rs` sanitises text when it comes in, so `svc top` draws no other. In JSON
//!    the symbols are JSON's own escapes, so a program reads the same text. `svc task run` copies
//!    the bytes of its own command.

pub mod cli;
