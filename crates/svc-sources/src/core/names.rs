//! Hard links of a file, and the files that a session has seen.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs::{self, Metadata},
    io,
    os::unix::fs::{DirEntryExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use sha2::{Digest as _, Sha256};

/// Most names that are counted.
const MOST_NAMES: usize = 200_000;

/// A file whatever its names: device and inode.
type FileId = (u64, u64);

/// A regular file, and the number of its hard links.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileNames {
    id: FileId,
    count: u64,
}

/// The number of hard links of each file below some folders, counted on first use.
#[derive(Debug, Clone, Default)]
pub(super) struct NameCounts(Arc<OnceLock<Option<HashMap<FileId, u64>>>>);

impl FileNames {
    pub(super) fn from_metadata(meta: &Metadata) -> Self {
        Self { id: (meta.dev(), meta.ino()), count: meta.nlink() }
    }

    /// Refuses a file that has a hard link outside `roots` or below `closed`. A file that cannot be
    /// counted is refused.
    pub(super) fn check(
        self,
        roots: &[PathBuf],
        closed: &[PathBuf],
        known: &NameCounts,
    ) -> io::Result<()> {
        if self.count <= 1 {
            return Ok(());
        }
        let counts = known.0.get_or_init(|| {
            if is_filesystem_root(roots) {
                count_names(closed, &[])
            } else {
                count_names(roots, closed)
            }
        });
        let inside = match counts {
            // Only closed paths are outside.
            Some(counts) if is_filesystem_root(roots) => !counts.contains_key(&self.id),
            Some(counts) => counts.get(&self.id).is_some_and(|count| *count >= self.count),
            None => false,
        };
        if inside {
            return Ok(());
        }
        let text = format!(
            "it has {} names (hard links), and not all of them are inside: work on a copy of it",
            self.count
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

fn is_filesystem_root(roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| root.parent().is_none())
}

/// The number of hard links of each file below these paths, without closed ones; `None` if there
/// are too many.
fn count_names(tops: &[PathBuf], closed: &[PathBuf]) -> Option<HashMap<FileId, u64>> {
    let mut counts = HashMap::new();
    let mut seen = HashSet::new();
    let mut folders = Vec::new();
    let mut add = |id: FileId| *counts.entry(id).or_insert(0_u64) += 1;
    for top in tops {
        match fs::symlink_metadata(top) {
            Ok(meta) if meta.is_dir() => folders.push(top.clone()),
            Ok(meta) if meta.is_file() => add((meta.dev(), meta.ino())),
            _ => {}
        }
    }
    let mut left = MOST_NAMES;
    while let Some(folder) = folders.pop() {
        let is_closed = |path: &Path| closed.iter().any(|closed| path == closed);
        let Ok(meta) = fs::symlink_metadata(&folder) else { continue };
        // A root within another counts once. `/proc` has no files of a disk.
        if is_closed(&folder)
            || folder == Path::new("/proc")
            || !seen.insert((meta.dev(), meta.ino()))
        {
            continue;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() && !is_closed(&entry.path()) => {
                    add((meta.dev(), entry.ino()));
                }
                _ => {}
            }
        }
    }
    Some(counts)
}

/// Most files that are remembered, for all sessions together.
const MAX_FILES: usize = 20_000;

type FileKey = (String, PathBuf);
type ContentHash = [u8; 32];

/// The files that sessions have read or written.
#[derive(Debug, Default)]
pub(super) struct ReadFiles(Mutex<SeenTable>);

#[derive(Debug, Default)]
struct SeenTable {
    files: HashMap<FileKey, ContentHash>,
    /// The oldest first.
    order: VecDeque<FileKey>,
}

/// Why a file may not be edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotRead {
    Never,
    Changed,
}

impl ReadFiles {
    /// Notes that the session has read or written this content.
    pub(super) fn note(&self, session: &str, path: &Path, content: &[u8]) {
        let key = (session.to_owned(), path.to_owned());
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.files.insert(key.clone(), Sha256::digest(content).into()).is_none() {
            table.order.push_back(key);
        }
        while table.order.len() > MAX_FILES {
            if let Some(oldest) = table.order.pop_front() {
                table.files.remove(&oldest);
            }
        }
    }

    /// Checks that the session has seen this content.
    pub(super) fn check(&self, session: &str, path: &Path, content: &[u8]) -> Result<(), NotRead> {
        let key = (session.to_owned(), path.to_owned());
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match table.files.get(&key) {
            None => Err(NotRead::Never),
            Some(seen) if *seen == ContentHash::from(Sha256::digest(content)) => Ok(()),
            Some(_) => Err(NotRead::Changed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_link_outside_the_roots_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let top = folder.path().canonicalize().expect("is there");
        let (inside, outside) = (top.join("in"), top.join("out"));
        for folder in [&inside.join("sub"), &inside.join("closed"), &outside] {
            fs::create_dir_all(folder).expect("is made");
        }
        for (name, second) in [
            ("alone", None),
            ("twice", Some(inside.join("sub/twice"))),
            ("leak", Some(outside.join("leak"))),
            ("private", Some(inside.join("closed/private"))),
            ("config", Some(inside.join("sub/config"))),
        ] {
            fs::write(inside.join(name), "x").expect("is written");
            if let Some(second) = second {
                fs::hard_link(inside.join(name), second).expect("is linked");
            }
        }
        let closed = [inside.join("closed"), inside.join("sub/config"), "/proc".into()];
        let check = |name: &str, roots: &[PathBuf]| {
            let meta = fs::metadata(inside.join(name)).expect("is there");
            FileNames::from_metadata(&meta).check(roots, &closed, &NameCounts::default())
        };
        let within = [inside.clone(), inside.join("sub")];
        for (name, of_folder, of_all) in [
            ("alone", true, true),
            ("twice", true, true),
            ("leak", false, true),
            ("private", false, false),
            ("config", false, false),
        ] {
            assert_eq!(check(name, &within).is_ok(), of_folder, "{name}");
            assert_eq!(check(name, &["/".into()]).is_ok(), of_all, "{name}, all is inside");
        }
        let error = check("leak", &within).expect_err("is refused").to_string();
        assert!(error.contains("has 2 names (hard links)"), "{error}");
    }
}
