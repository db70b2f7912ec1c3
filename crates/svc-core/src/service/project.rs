//! The project that work belongs to.

use std::path::Path;

use svc_model::{Caller, journal::Session};
use svc_sys::project_folder;

/// Root of the project that a folder belongs to, as [`project_folder::project_root`] finds it. The
/// folder may be on another machine; then it is taken as it is.
pub(in crate::service) fn project_root(cwd: &str) -> String {
    let root = project_folder::project_root(Path::new(cwd)).to_string_lossy();
    let trimmed = root.trim_end_matches('/');
    if trimmed.is_empty() { root.into_owned() } else { trimmed.to_owned() }
}

/// The project of a session that begins. A session token's is that of the token, whatever folder is
/// named: nobody puts a session into another project.
pub(in crate::service) fn project_to_start(caller: &Caller, cwd: Option<&str>) -> Option<String> {
    if caller.is_operator() { cwd.map(project_root) } else { caller.project().map(str::to_owned) }
}

/// The project of what a caller writes in a session: that of its token, or of the session that the
/// operator names.
pub(in crate::service) fn project_of_write(
    caller: &Caller,
    session: Option<Session>,
) -> Option<String> {
    if caller.is_operator() {
        session.and_then(|session| session.project)
    } else {
        caller.project().map(str::to_owned)
    }
}
