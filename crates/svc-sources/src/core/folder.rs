//! Bounds of a caller's paths: a path stays inside the caller's folders in spite of links, also of
//! links that change concurrently. Closed paths, such as the daemon's own data, are never inside.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fs::{self, File},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirEntryExt as _, MetadataExt as _},
    },
    path::{Component, Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, mkdirat, openat, renameat, unlinkat};
use svc_core::tools::{ErrorType, ToolError};

use crate::field_error;

/// Maximum length of a chain of dangling links that is followed.
const MAX_LINKS: usize = 8;

#[derive(Debug, Clone)]
pub(super) struct FolderBounds {
    base: PathBuf,
    /// Resolved. A path inside the bounds is below one of them.
    roots: Vec<PathBuf>,
    /// Resolved. These and the paths below them are never inside, whatever the roots are.
    closed: Vec<PathBuf>,
    /// The number of hard links of each file inside the bounds, counted on first use.
    names: Arc<OnceLock<Option<HashMap<FileId, u64>>>>,
}

/// A file or folder inside the bounds: its path without links, and its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundPath {
    root: PathBuf,
    pub(super) path: PathBuf,
}

/// An open folder, and a name in it.
#[derive(Debug)]
pub(super) struct HeldName {
    folder: OwnedFd,
    name: OsString,
}

impl FolderBounds {
    /// Refuses bounds outside the session's project. A session that writes in its project can
    /// replace its folder by a link to any other folder.
    pub(super) fn check_within(&self, project: &Path) -> Result<(), ToolError> {
        if project.canonicalize().is_ok_and(|project| self.base.starts_with(project)) {
            return Ok(());
        }
        let text = format!("the folder {} is outside its project", self.base.display());
        Err(ToolError::new(ErrorType::Forbidden, text))
    }

    /// Bounds of these absolute roots, without the `closed` paths. Relative paths begin at
    /// `folder`, else at the first root.
    pub(super) fn new(
        folder: Option<&Path>,
        roots: &[PathBuf],
        closed: &[PathBuf],
    ) -> Result<Self, ToolError> {
        let resolve = |path: &Path| {
            path.canonicalize().map_err(|error| {
                let text = format!("the folder {} cannot be used: {error}", path.display());
                ToolError::new(ErrorType::Unavailable, text)
            })
        };
        let roots: Vec<&Path> = if roots.is_empty() {
            folder.into_iter().collect()
        } else {
            roots.iter().map(PathBuf::as_path).collect()
        };
        let roots = roots.into_iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
        let base = match folder {
            Some(folder) => resolve(folder)?,
            None => roots.first().cloned().ok_or_else(|| {
                let text = "your session has no folder: start it in one, or let the person name `roots` in [sources.core]";
                ToolError::new(ErrorType::Forbidden, text)
            })?,
        };
        // A closed path may not exist yet: then it is compared by its text.
        let closed = closed.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
        Ok(Self { base, roots, closed: closed.collect(), names: Arc::default() })
    }

    /// The folder that relative paths begin at, or that `cwd` names.
    pub(super) fn folder(&self, cwd: Option<&str>) -> Result<BoundPath, ToolError> {
        let found = self.existing(&self.base.clone(), cwd.unwrap_or("."), "cwd")?;
        if !found.path.is_dir() {
            return Err(ToolError::invalid("cwd", "cwd: is no folder"));
        }
        Ok(found)
    }

    pub(super) fn find(
        &self,
        cwd: Option<&str>,
        path: &str,
        field: &str,
    ) -> Result<BoundPath, ToolError> {
        let from = self.folder(cwd)?;
        self.existing(&from.path, path, field)
    }

    fn existing(&self, from: &Path, path: &str, field: &str) -> Result<BoundPath, ToolError> {
        let asked = from.join(checked(path, field)?);
        let resolved = asked.canonicalize().map_err(|error| match error.kind() {
            // The error must not tell whether a path outside exists.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                if self.is_inside_by_text(&asked) =>
            {
                let text = format!("{field}: there is no {}", asked.display());
                field_error(ErrorType::NotFound, field, text)
            }
            _ if self.is_inside_by_text(&asked) => {
                let text = format!("{field}: {} cannot be used: {error}", asked.display());
                ToolError::invalid(field, text)
            }
            _ => self.outside(field),
        })?;
        self.bound(resolved, field)
    }

    /// Resolves a path that may not exist yet.
    pub(super) fn to_write(&self, path: &str, field: &str) -> Result<BoundPath, ToolError> {
        let mut asked = self.base.join(checked(path, field)?);
        if let Ok(resolved) = asked.canonicalize() {
            return self.bound(resolved, field);
        }
        // A dangling link stays a link: the file is created at the target of the link.
        let mut links = 0;
        while let Ok(target) = fs::read_link(&asked) {
            links += 1;
            let Some(folder) = asked.parent().filter(|_| links <= MAX_LINKS) else {
                return Err(self.outside(field));
            };
            asked = folder.join(target);
        }
        let Some(name) = asked.file_name().map(ToOwned::to_owned) else {
            return Err(ToolError::invalid(field, format!("{field}: names no file")));
        };
        // If folders above the file are missing, the nearest existing one is checked.
        let mut missing = vec![name];
        let mut above = asked.parent();
        while let Some(folder) = above {
            if let Ok(mut resolved) = folder.canonicalize() {
                resolved.extend(missing.iter().rev());
                return self.bound(resolved, field);
            }
            match folder.components().next_back() {
                Some(Component::Normal(name)) => missing.push(name.to_owned()),
                _ => return Err(self.outside(field)),
            }
            above = folder.parent();
        }
        Err(self.outside(field))
    }

    /// Opens a regular file for reading, if none of its hard links is outside.
    pub(super) fn open(&self, found: &BoundPath) -> io::Result<File> {
        let file = found.hold(false)?.open()?;
        self.check_names(&file)?;
        Ok(file)
    }

    /// The mode of the regular file of this name, if none of its hard links is outside; `None` if
    /// there is no file.
    pub(super) fn mode_of(&self, held: &HeldName) -> io::Result<Option<u32>> {
        let mode = held.mode()?;
        // A file that cannot be read cannot be checked. A write replaces it by a new file, so its
        // other hard links keep their content.
        match held.open() {
            Ok(file) => self.check_names(&file)?,
            Err(_) if mode.is_none() => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
        Ok(mode)
    }

    /// Refuses a file that has a hard link outside. A file that cannot be counted is refused.
    fn check_names(&self, file: &File) -> io::Result<()> {
        let meta = file.metadata()?;
        let (id, count) = ((meta.dev(), meta.ino()), meta.nlink());
        if count <= 1 {
            return Ok(());
        }
        // If a root is the root of the filesystem, only closed paths are outside.
        let is_all = self.roots.iter().any(|root| root.parent().is_none());
        let counts = self.names.get_or_init(|| {
            if is_all {
                count_names(&self.closed, &[])
            } else {
                count_names(&self.roots, &self.closed)
            }
        });
        let inside = match counts {
            Some(counts) if is_all => !counts.contains_key(&id),
            Some(counts) => counts.get(&id).is_some_and(|inside| *inside >= count),
            None => false,
        };
        if inside {
            return Ok(());
        }
        let text = format!(
            "it has {count} names (hard links), and not all of them are inside: work on a copy of it"
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    pub(super) fn is_closed(&self, path: &Path) -> bool {
        self.closed.iter().any(|closed| path.starts_with(closed))
    }

    fn bound(&self, path: PathBuf, field: &str) -> Result<BoundPath, ToolError> {
        let root = self.roots.iter().find(|root| path.starts_with(root));
        match root.filter(|_| !self.is_closed(&path)) {
            Some(root) => Ok(BoundPath { root: root.clone(), path }),
            None => Err(self.outside(field)),
        }
    }

    /// Compares the path as text, without resolving it.
    fn is_inside_by_text(&self, path: &Path) -> bool {
        let has_up = path.components().any(|part| part == Component::ParentDir);
        !has_up && !self.is_closed(path) && self.roots.iter().any(|root| path.starts_with(root))
    }

    fn outside(&self, field: &str) -> ToolError {
        let roots: Vec<String> = self.roots.iter().map(|root| root.display().to_string()).collect();
        let text = format!("{field}: leads out of {}", roots.join(", "));
        field_error(ErrorType::Forbidden, field, text).allowed(roots)
    }

    /// The path in a caller's form: relative if it is below the caller's folder.
    pub(super) fn shown(&self, path: &Path) -> String {
        let short = path.strip_prefix(&self.base).unwrap_or(path);
        if short.as_os_str().is_empty() { ".".to_owned() } else { short.display().to_string() }
    }
}

fn checked<'a>(path: &'a str, field: &str) -> Result<&'a Path, ToolError> {
    if path.is_empty() || path.contains('\0') {
        return Err(ToolError::invalid(field, format!("{field}: is no path")));
    }
    Ok(Path::new(path))
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
#[cfg(target_os = "linux")]
const STEP: OFlags = FOLDER.union(OFlags::PATH);
#[cfg(not(target_os = "linux"))]
const STEP: OFlags = FOLDER;

impl BoundPath {
    pub(super) fn child(&self, path: PathBuf) -> Self {
        Self { root: self.root.clone(), path }
    }

    /// Opens the folders from the root down, one component at a time and without following links,
    /// so that a link which is created meanwhile fails. Creates missing folders if `makes_folders`.
    pub(super) fn hold(&self, makes_folders: bool) -> io::Result<HeldName> {
        let below = self.path.strip_prefix(&self.root).map_err(|_| io::ErrorKind::NotFound)?;
        let mut names: Vec<OsString> = below.iter().map(ToOwned::to_owned).collect();
        let name = names.pop().unwrap_or_else(|| ".".into());
        let mut folder = openat(CWD, &self.root, STEP, Mode::empty())?;
        for name in names {
            if makes_folders {
                match mkdirat(&folder, &name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            folder = openat(&folder, &name, STEP, Mode::empty())?;
        }
        Ok(HeldName { folder, name })
    }
}

const NOT_REGULAR: &str = "it is no regular file";

impl HeldName {
    fn open(&self) -> io::Result<File> {
        // A FIFO would block its reader.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(openat(&self.folder, &self.name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(NOT_REGULAR));
        }
        Ok(file)
    }

    /// The mode of the regular file of this name; `None` if there is none.
    fn mode(&self) -> io::Result<Option<u32>> {
        match rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() => {
                Ok(Some(stat.st_mode & 0o7777))
            }
            // A replaced FIFO or socket would be lost to whoever has it open.
            Ok(_) => Err(io::Error::other(NOT_REGULAR)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces a file atomically. `mode` is for a new file; an existing one keeps its mode.
    pub(super) fn write(
        &self,
        contents: &[u8],
        mode: Option<u32>,
        must_be_new: bool,
    ) -> io::Result<()> {
        use std::io::Write as _;

        let temporary =
            OsString::from(format!(".svc-{}.tmp", svc_model::new_secret().split_at(16).0));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file =
            File::from(openat(&self.folder, &temporary, flags, Mode::from_raw_mode(0o666))?);
        let written = (|| {
            if let Some(mode) = mode {
                use std::os::unix::fs::PermissionsExt as _;
                file.set_permissions(fs::Permissions::from_mode(mode))?;
            }
            file.write_all(contents)?;
            file.sync_all()?;
            if must_be_new {
                // A rename would replace a file that was created meanwhile.
                linkat(&self.folder, &temporary, &self.folder, &self.name, AtFlags::empty())?;
                unlinkat(&self.folder, &temporary, AtFlags::empty())?;
            } else {
                renameat(&self.folder, &temporary, &self.folder, &self.name)?;
            }
            // A power cut loses the name until the folder is synced. A folder that cannot be read
            // cannot be synced.
            if let Ok(folder) = openat(&self.folder, ".", FOLDER, Mode::empty()) {
                rustix::fs::fsync(&folder).ok();
            }
            Ok(())
        })();
        if written.is_err() {
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        written
    }
}

/// Maximum number of directory entries that are visited to count hard links.
const MOST_NAMES: usize = 200_000;

/// A file whatever its names: device and inode.
type FileId = (u64, u64);

/// The number of hard links of each file below these paths, without closed ones; `None` if there
/// are more than [`MOST_NAMES`] entries.
fn count_names(tops: &[PathBuf], closed: &[PathBuf]) -> Option<HashMap<FileId, u64>> {
    let (mut counts, mut seen, mut folders) = (HashMap::new(), HashSet::new(), Vec::new());
    let mut add = |id: FileId| *counts.entry(id).or_insert(0_u64) += 1;
    for top in tops {
        match fs::symlink_metadata(top) {
            Ok(meta) if meta.is_dir() => folders.push(top.clone()),
            Ok(meta) if meta.is_file() => add((meta.dev(), meta.ino())),
            _ => {}
        }
    }
    let mut left = MOST_NAMES;
    let is_closed = |path: &Path| closed.iter().any(|closed| path == closed);
    while let Some(folder) = folders.pop() {
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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A folder, and its path without links.
    fn top() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let top = folder.path().canonicalize().expect("is there");
        (folder, top)
    }

    #[test]
    fn paths_outside_the_roots_are_refused() {
        let (_folder, top) = top();
        let (inside, outside) = (top.join("in"), top.join("out"));
        fs::create_dir_all(inside.join("sub")).expect("is made");
        fs::create_dir(&outside).expect("is made");
        fs::write(inside.join("a"), "a").expect("is written");
        fs::write(outside.join("secret"), "s").expect("is written");
        symlink(&outside, inside.join("away")).expect("is linked");
        symlink(outside.join("secret"), inside.join("leak")).expect("is linked");
        symlink("a", inside.join("near")).expect("is linked");
        symlink(outside.join("none"), inside.join("dangling")).expect("is linked");
        let bounds = FolderBounds::new(Some(&inside), &[], &[]).expect("bounds");
        for (path, expected) in [
            ("a", Ok("a")),
            ("sub/../a", Ok("a")),
            ("near", Ok("a")),
            (".", Ok(".")),
            ("none", Err(ErrorType::NotFound)),
            ("../out/secret", Err(ErrorType::Forbidden)),
            ("../out/none", Err(ErrorType::Forbidden)),
            ("away/secret", Err(ErrorType::Forbidden)),
            ("leak", Err(ErrorType::Forbidden)),
            ("/etc/passwd", Err(ErrorType::Forbidden)),
            ("", Err(ErrorType::ValidationError)),
            ("a\0b", Err(ErrorType::ValidationError)),
        ] {
            let found = bounds.find(None, path, "path");
            let found = found.map(|it| bounds.shown(&it.path)).map_err(|error| error.kind);
            assert_eq!(found.as_deref().map_err(|kind| *kind), expected, "{path:?}");
        }
        for (path, is_allowed) in [
            ("new", true),
            ("sub/deep/new", true),
            ("near", true),
            ("away/new", false),
            ("../out/new", false),
            ("nowhere/../../out/new", false),
            ("/tmp/svc-out-of-bounds", false),
            ("leak", false),
            // Its target does not exist, and would be outside.
            ("dangling", false),
        ] {
            assert_eq!(bounds.to_write(path, "path").is_ok(), is_allowed, "{path:?}");
        }
    }

    #[test]
    fn closed_path_is_outside_whatever_the_roots_are() {
        let (_folder, top) = top();
        let data = top.join("data");
        fs::create_dir_all(data.join("spool")).expect("is made");
        fs::write(data.join("token"), "secret").expect("is written");
        fs::write(top.join("other"), "x").expect("is written");
        fs::write(top.join("database-wal"), "x").expect("is written");
        symlink(data.join("token"), top.join("leak")).expect("is linked");
        symlink(&data, top.join("alias")).expect("is linked");
        let closed = [top.join("alias"), top.join("later"), top.join("database")];
        for roots in [vec![], vec![top.clone()], vec![PathBuf::from("/")], vec![data.clone()]] {
            let bounds = FolderBounds::new(Some(&top), &roots, &closed).expect("bounds");
            for path in ["data", "data/token", "data/none", "alias/token", "leak", "data/spool"] {
                let refused = bounds.find(None, path, "path").expect_err(path);
                assert_eq!(refused.kind, ErrorType::Forbidden, "{path} in {roots:?}");
                assert!(bounds.to_write(path, "path").is_err(), "{path} in {roots:?}");
            }
            for path in ["data/new", "data/deep/new", "later", "later/new"] {
                assert!(bounds.to_write(path, "path").is_err(), "{path} in {roots:?}");
            }
            assert!(bounds.folder(Some("data")).is_err());
            if roots != [data.clone()] {
                bounds.find(None, "other", "path").expect("a neighbour is inside");
                bounds.find(None, "database-wal", "path").expect("a longer name is another");
            }
        }
    }

    #[test]
    fn link_created_after_the_check_is_not_followed() {
        let (_folder, top) = top();
        let (inside, outside) = (top.join("in"), top.join("out"));
        fs::create_dir_all(inside.join("sub")).expect("is made");
        fs::create_dir(&outside).expect("is made");
        for at in [inside.join("sub/a"), outside.join("a")] {
            fs::write(at, "x").expect("is written");
        }
        let bounds = FolderBounds::new(Some(&inside), &[], &[]).expect("bounds");
        let found = bounds.find(None, "sub/a", "path").expect("is inside");
        fs::remove_dir_all(inside.join("sub")).expect("is removed");
        symlink(&outside, inside.join("sub")).expect("is linked");
        assert!(bounds.open(&found).is_err());
        assert!(found.hold(true).is_err());
        fs::remove_file(inside.join("sub")).expect("is removed");
        fs::create_dir(inside.join("sub")).expect("is made");
        symlink(outside.join("a"), inside.join("sub/a")).expect("is linked");
        assert!(bounds.open(&found).is_err());
    }

    #[test]
    fn write_of_a_new_file_never_replaces_an_existing_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let bounds = FolderBounds::new(Some(folder.path()), &[], &[]).expect("bounds");
        let path = bounds.to_write("a/b/c", "path").expect("is inside");
        assert!(path.hold(false).is_err(), "the folders are not there");
        let held = path.hold(true).expect("folders are made");
        held.write(b"one", Some(0o640), true).expect("is new");
        let error = held.write(b"two", None, true).expect_err("is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path.path).expect("is there"), b"one");
        let names = fs::read_dir(path.path.parent().expect("has one")).expect("a folder").count();
        assert_eq!(names, 1, "nothing is left beside it");
        FolderBounds::new(None, &[], &[]).expect_err("no folder at all");
    }

    #[test]
    fn hard_link_outside_the_roots_is_refused() {
        let (_folder, top) = top();
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
            let file = File::open(inside.join(name)).expect("is there");
            let (base, roots, closed) = (inside.clone(), roots.to_vec(), closed.to_vec());
            FolderBounds { base, roots, closed, names: Arc::default() }.check_names(&file)
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
