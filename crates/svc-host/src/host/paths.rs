//! Files of agents, and files that agents would change.

use std::path::{Component, Path, PathBuf};

/// Whether a file that need not exist is inside a folder, whatever links lead there.
pub(super) fn is_inside(folder: &Path, file: &Path) -> bool {
    let joined = folder.join(file);
    let has_way_up = joined.components().any(|part| part == Component::ParentDir);
    let Ok(folder) = folder.canonicalize() else { return false };
    !has_way_up && existing(&joined).is_some_and(|known| known.starts_with(&folder))
}

/// The real path of the longest part that exists. A link that leads nowhere is none.
fn existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|part| part.symlink_metadata().is_ok())?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_or_a_way_up_leads_outside() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("inside");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/etc", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("/no/such/file", folder.join("dangling")).unwrap();
        for (file, inside) in [
            ("a.txt", true),
            ("new/folder/a.txt", true),
            ("../a.txt", false),
            ("new/../../a.txt", false),
            ("link/passwd", false),
            ("dangling", false),
            ("/etc/passwd", false),
        ] {
            assert_eq!(is_inside(&folder, Path::new(file)), inside, "{file}");
        }
        assert!(is_inside(&folder, &folder.join("a")));
        assert!(!is_inside(&folder, &outer.path().join("inside-not")));
    }
}
