use std::path::Path;

use svc_model::{Caller, journal::Session};
use svc_sys::project_folder;

/// Root of the project that a folder belongs to. A folder on another machine is taken as it is.
pub(in crate::service) fn project_root(cwd: &str) -> String {
    let root = project_folder::project_root(Path::new(cwd)).to_string_lossy();
    let trimmed = root.trim_end_matches('/');
    if trimmed.is_empty() { root.into_owned() } else { trimmed.to_owned() }
}

/// The project of a new session. For a session token it is the token's project, whatever folder the
/// caller names: no caller puts a session into another project.
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
