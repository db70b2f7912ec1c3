//! The folder of the project that a folder belongs to.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Write permission for everybody, as in `/tmp`.
const WRITABLE_BY_ALL: u32 = 0o002;

/// The nearest folder from `folder` upwards that has a `.git`, else `folder`.
///
/// A folder that everybody may write is no project: any user can put a `.git` there, and the
/// sandboxes of some agents leave an empty one in `/tmp`, which would make all below it one
/// project.
pub fn project_root(folder: &Path) -> &Path {
    folder.ancestors().find(|up| is_root(up)).unwrap_or(folder)
}

fn is_root(folder: &Path) -> bool {
    folder.join(".git").exists()
        && folder.metadata().is_ok_and(|meta| meta.mode() & WRITABLE_BY_ALL == 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn nearest_repository_is_the_project_unless_all_can_write_it() {
        let tmp = tempfile::tempdir().expect("a folder");
        let outer = tmp.path().join("outer");
        let inner = outer.join("inner");
        let deep = inner.join("a/b");
        fs::create_dir_all(&deep).expect("folders");
        fs::create_dir(outer.join(".git")).expect("a folder");
        assert_eq!(project_root(&deep), outer);
        // The `.git` of a worktree is a file.
        fs::write(inner.join(".git"), "gitdir: elsewhere\n").expect("a file");
        assert_eq!(project_root(&deep), inner);
        assert_eq!(project_root(&inner), inner);

        fs::set_permissions(&inner, Permissions::from_mode(0o1777)).expect("it is ours");
        assert_eq!(project_root(&deep), outer);
        fs::set_permissions(&outer, Permissions::from_mode(0o1777)).expect("it is ours");
        fs::create_dir(deep.join(".git")).expect("a folder");
        assert_eq!(project_root(&deep), deep);
    }
}
