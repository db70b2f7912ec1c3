//! The built-in server `core`: files, searches, the shell and the web, for callers with a scope.
//!
//! `folder` bounds a caller's paths, `names` has the files that a session has read. `files`,
//! `find`, `bash` and `fetch` are the tools of those names. `server` puts them together.

mod bash;
mod fetch;
mod files;
mod find;
mod folder;
mod ignored;
mod names;
mod server;

pub(super) use server::CoreServer;
