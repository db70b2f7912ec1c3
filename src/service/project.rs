//! The project that work belongs to.

use std::path::Path;

/// Root of the project that a folder belongs to: the nearest folder above it that is a repository, else the folder.
/// The folder may be on another machine; then it is taken as it is.
pub(in crate::service) fn project_root(cwd: &str) -> String {
    let path = Path::new(cwd);
    let root = path.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(path);
    let root = root.to_string_lossy();
    let trimmed = root.trim_end_matches('/');
    if trimmed.is_empty() { root.into_owned() } else { trimmed.to_owned() }
}
