//! Files and folders of one user: mode 0600 and 0700, never partly written, and never under a name
//! that another user could have prepared.
//!
//! A new file gets a random name in its folder, is written and synced, and is then renamed. No link
//! is followed at the last part of a path. A path that others own or can write is refused, and the
//! error has the command that repairs it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use tempfile::NamedTempFile;

use crate::bounded_file;

/// Largest file with a secret, in bytes.
const MAX_SECRET: u64 = 4096;
/// Largest file with settings, in bytes.
const MAX_SETTINGS: u64 = 4 << 20;
const OTHERS_WRITE: u32 = 0o022;
const EVERYBODY_WRITES: u32 = 0o002;
const OTHERS: u32 = 0o077;
/// Mode bit of a folder in which only a file's owner may remove or rename it.
const STICKY: u32 = 0o1000;

/// A file or folder that another user may have created or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} {fault}: {remedy}")]
pub struct UntrustedPath {
    path: String,
    fault: String,
    remedy: String,
}

impl UntrustedPath {
    pub fn parts(&self) -> (String, &str) {
        (format!("{} {}", self.path, self.fault), &self.remedy)
    }
}

impl From<UntrustedPath> for io::Error {
    fn from(untrusted: UntrustedPath) -> Self {
        Self::new(ErrorKind::PermissionDenied, untrusted)
    }
}

/// Creates a file. Fails if the name exists, even as a link.
pub fn create_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    let file = written_beside(path, contents)?;
    file.as_file().sync_all()?;
    persist_new(file, path)
}

/// As [`create_new`], with an exclusive lock that is taken before the file gets its name, so nobody
/// sees it unlocked, which would mean that its writer has ended. The file is open for reading and
/// writing.
pub fn create_new_held(path: &Path, contents: &[u8]) -> io::Result<File> {
    let file = written_beside(path, contents)?;
    file.as_file().sync_all()?;
    file.as_file().try_lock()?;
    let file = file.persist_noclobber(path)?;
    sync_folder_of(path)?;
    Ok(file)
}

/// Replaces a file atomically: a reader sees the old or the new content, also after a power cut.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    persist(written_beside(path, contents)?, path)
}

/// Replaces a file atomically without syncing it, for a file that is useless after a power cut.
pub fn replace_fleeting(path: &Path, contents: &[u8]) -> io::Result<()> {
    written_beside(path, contents)?.persist(path)?;
    Ok(())
}

/// As [`replace`], with mode 0644.
pub fn replace_public(path: &Path, contents: &[u8]) -> io::Result<()> {
    let file = written_beside(path, contents)?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    persist(file, path)
}

fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_folder_of(path)
}

/// An empty file with a random name in the folder of `path`; dropping it removes the file.
pub fn temporary_beside(path: &Path) -> io::Result<NamedTempFile> {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".tmp")
        .rand_bytes(12)
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(folder_of(path))
}

/// Gives a temporary file its final name, which must not exist, and syncs the folder.
pub fn persist_new(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist_noclobber(path)?;
    sync_folder_of(path)
}

/// Opens or creates a file for appending with mode 0600, and removes other users' write permission.
pub fn append(path: &Path) -> io::Result<File> {
    let no_file = || io::Error::from(untrusted(path, "is not a file", "move it away"));
    let mut options = OpenOptions::new();
    options
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    // A pipe without a reader, and a socket, fail at once with this error.
    let file = options.open(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => no_file(),
        _ => name_link(path, error),
    })?;
    let meta = file.metadata()?;
    if meta.file_type().is_fifo() {
        return Err(no_file());
    }
    // A device such as /dev/null keeps its owner and mode.
    if meta.is_file() {
        check_owner(path, &meta)?;
        if meta.mode() & OTHERS_WRITE != 0 {
            let mode = meta.mode() & 0o7777 & !OTHERS_WRITE;
            file.set_permissions(Permissions::from_mode(mode))?;
        }
    }
    Ok(file)
}

/// Opens a regular file for reading; refuses a link.
pub fn open(path: &Path) -> io::Result<File> {
    bounded_file::open_regular_itself(path).map_err(|error| name_link(path, error))
}

/// Reads a file with a secret, which nobody else may read or write; `None` if it does not exist.
pub fn read_secret(path: &Path) -> io::Result<Option<String>> {
    let text = read_secret_bytes(path, MAX_SECRET)?.map(String::from_utf8).transpose();
    text.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// As [`read_secret`], for a file of up to `most` bytes. Refuses a file with a second name (hard
/// link), as another folder may expose it.
pub fn read_secret_bytes(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = if_there(open(path))? else { return Ok(None) };
    let meta = file.metadata()?;
    check_private(path, &meta, 0o600)?;
    check_names(path, &meta)?;
    check_above(folder_of(path))?;
    if meta.len() > most {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is too large to be a token"));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Creates a folder and its parents with mode 0700; an existing folder stays as it is. Syncs the
/// names of the folders that it created, since a lost folder loses the files that were synced in
/// it.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    missing.into_iter().rev().try_for_each(sync_folder_of)
}

/// Creates the data folder if it is missing; refuses one that others own or can write.
pub fn prepare_home(home: &Path) -> io::Result<()> {
    create_folder(home).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot create {}: {error}", home.display()))
    })?;
    check_folder(home)
}

/// Takes from others what they may do in a folder. Returns the mode before, if it changed.
pub fn close_folder(path: &Path) -> io::Result<Option<u32>> {
    let mode = std::fs::metadata(path)?.mode() & 0o7777;
    if mode & OTHERS == 0 {
        return Ok(None);
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS))?;
    Ok(Some(mode))
}

/// Refuses a folder that others own or can write, or that everybody may replace. Of a link the
/// target is checked. A missing folder passes.
pub fn check_folder(path: &Path) -> io::Result<()> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let Some(meta) = if_there(std::fs::metadata(path)).map_err(named)? else { return Ok(()) };
    if !meta.is_dir() {
        let remedy = "move it away, or choose another with SVC_HOME";
        return Err(untrusted(path, "is not a folder", remedy).into());
    }
    check_owner(path, &meta)?;
    check_mode(path, &meta, OTHERS_WRITE, 0o700)?;
    match std::fs::canonicalize(path)?.parent() {
        Some(above) => check_above(above),
        None => Ok(()),
    }
}

/// Refuses a folder if in it, or in a folder above it, everybody may replace the files of others.
fn check_above(folder: &Path) -> io::Result<()> {
    for path in std::fs::canonicalize(folder)?.ancestors() {
        let mode = std::fs::metadata(path)?.mode();
        if mode & EVERYBODY_WRITES != 0 && mode & STICKY == 0 {
            let fault = format!("lets everybody replace what is in it (mode {:o})", mode & 0o7777);
            let remedy = format!("chmod o-w {}", path.display());
            return Err(untrusted(path, &fault, &remedy).into());
        }
    }
    Ok(())
}

/// As `check_above`, for the folder of a file.
pub fn check_above_file(path: &Path) -> io::Result<()> {
    check_above(folder_of(path))
}

/// Refuses a file that belongs to another user, or that others may read or write. The error's
/// remedy sets `mode`.
pub fn check_private(path: &Path, meta: &Metadata, mode: u32) -> Result<(), UntrustedPath> {
    check_owner(path, meta)?;
    check_mode(path, meta, OTHERS, mode)
}

/// Refuses a file that others can write, or that belongs to another user who is not root.
pub fn check_source(path: &Path, meta: &Metadata) -> Result<(), UntrustedPath> {
    if !meta.is_file() {
        return Err(untrusted(path, "is not a file", "name a file"));
    }
    if meta.uid() != 0 {
        check_owner(path, meta)?;
    }
    check_mode(path, meta, OTHERS_WRITE, 0o600)
}

/// Opens a file under the rules of [`check_source`]; refuses a link.
pub(crate) fn open_source(path: &Path) -> Option<File> {
    let file = bounded_file::open_regular_itself(path).ok()?;
    check_source(path, &file.metadata().ok()?).ok()?;
    Some(file)
}

/// The last `most` bytes of a file as text.
pub(crate) fn tail_of(mut file: File, most: u64) -> Option<String> {
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(most))).ok()?;
    let mut tail = Vec::new();
    file.take(most).read_to_end(&mut tail).ok()?;
    Some(String::from_utf8_lossy(&tail).into_owned())
}

/// Refuses a link, and a file with a second name (hard link): files that are kept beside one name,
/// such as a lock, are not beside the other. A missing file passes.
pub fn check_one_name(path: &Path) -> Result<(), UntrustedPath> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if meta.is_symlink() { Err(link(path)) } else { check_names(path, &meta) }
}

fn check_names(path: &Path, meta: &Metadata) -> Result<(), UntrustedPath> {
    if meta.is_file() && meta.nlink() > 1 {
        let fault = format!("has {} names (hard links)", meta.nlink());
        let remedy = "remove the others, or put a copy there in its place";
        return Err(untrusted(path, &fault, remedy));
    }
    Ok(())
}

/// Reads a regular file that holds no secret; `None` if it does not exist. Refuses a file that
/// others can write, or that belongs to another user who is not root.
pub fn read_settings(path: &Path) -> io::Result<Option<String>> {
    let Some(file) = if_there(bounded_file::open_regular(path))? else { return Ok(None) };
    let meta = file.metadata()?;
    if meta.uid() != 0 {
        check_owner(path, &meta)?;
    }
    check_mode(path, &meta, OTHERS_WRITE, 0o644)?;
    let bytes = bounded_file::read_open(file, MAX_SETTINGS)?;
    bounded_file::text_of(bytes).map(Some)
}

/// Turns the error "no such file" into `None`.
pub fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Most links on the path to one file.
const MOST_LINKS: usize = 16;

/// The path without links of a file or socket of another program of this user. Refuses it if it
/// does not belong to this user, or if others can write it or its folder. Also refuses a link on
/// the path that others could have created.
pub fn resolve_own(path: &Path) -> io::Result<PathBuf> {
    if !path.is_absolute() {
        let problem = format!("{} is not absolute", path.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, problem));
    }
    let mut rest: VecDeque<OsString> = components_of(path).collect();
    let mut resolved = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(&part);
        if !std::fs::symlink_metadata(&next)?.is_symlink() {
            resolved = next;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            let remedy = "name the file itself";
            return Err(untrusted(path, "leads through too many links", remedy).into());
        }
        check_holds_link(&resolved, &next)?;
        let target = std::fs::read_link(&next)?;
        if target.is_absolute() {
            resolved = PathBuf::from("/");
        }
        for part in components_of(&target).rev() {
            rest.push_front(part);
        }
    }
    check_folder(folder_of(&resolved))?;
    let meta = std::fs::symlink_metadata(&resolved)?;
    check_owner(&resolved, &meta)?;
    check_mode(&resolved, &meta, OTHERS_WRITE, 0o600)?;
    Ok(resolved)
}

fn components_of(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let names = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.map(|part| part.as_os_str().to_owned())
}

/// Refuses a link that a user other than this one and root could have created.
fn check_holds_link(folder: &Path, link: &Path) -> io::Result<()> {
    let (above, meta) = (std::fs::metadata(folder)?, std::fs::symlink_metadata(link)?);
    for (path, meta) in [(folder, &above), (link, &meta)] {
        if meta.uid() != 0 {
            check_owner(path, meta)?;
        }
    }
    // In a folder with this bit, only the link's owner can replace it.
    if above.mode() & STICKY == 0 {
        check_mode(folder, &above, OTHERS_WRITE, 0o700)?;
    }
    Ok(())
}

/// Reads a small text file of another program of this user, under the rules of [`resolve_own`].
pub fn read_own(path: &Path, most: u64) -> io::Result<String> {
    let path = resolve_own(path)?;
    let file = open(&path)?;
    let meta = file.metadata()?;
    check_owner(&path, &meta)?;
    check_mode(&path, &meta, OTHERS_WRITE, 0o600)?;
    bounded_file::text_of(bounded_file::read_open(file, most)?)
}

fn check_owner(path: &Path, meta: &Metadata) -> Result<(), UntrustedPath> {
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() == me {
        return Ok(());
    }
    let fault = format!("belongs to user {} and not to you (user {me})", meta.uid());
    let remedy = format!("run svc as that user, or `chown {me} {}`", path.display());
    Err(untrusted(path, &fault, &remedy))
}

fn check_mode(
    path: &Path,
    meta: &Metadata,
    forbidden: u32,
    wanted: u32,
) -> Result<(), UntrustedPath> {
    let mode = meta.mode() & 0o7777;
    let verb = match mode & forbidden {
        0 => return Ok(()),
        open if open & OTHERS_WRITE != 0 => "can be written by others",
        _ => "can be read by others",
    };
    let remedy = format!("chmod {wanted:o} {}", path.display());
    Err(untrusted(path, &format!("{verb} (mode {mode:o})"), &remedy))
}

fn untrusted(path: &Path, fault: &str, remedy: &str) -> UntrustedPath {
    UntrustedPath {
        path: path.display().to_string(),
        fault: fault.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// The system's own message for a link is "too many levels of symbolic links".
fn name_link(path: &Path, error: io::Error) -> io::Error {
    if path.is_symlink() { link(path).into() } else { error }
}

fn link(path: &Path) -> UntrustedPath {
    let remedy = "links are not followed here; put the file itself there";
    untrusted(path, "is a symbolic link", remedy)
}

fn written_beside(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = temporary_beside(path)?;
    file.write_all(contents)?;
    Ok(file)
}

pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The nearest existing folder of a path, as the data folder may not exist yet.
pub fn existing_folder(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// Bytes that this user can still write to the disk of `path`; `None` if the system does not say.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(existing_folder(path)).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("exists").mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("is ours");
    }

    #[test]
    fn replaced_file_is_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        fs::write(&path, "old").expect("writes");
        replace(&path, b"new").expect("replaces");
        assert_eq!((fs::read(&path).expect("reads"), mode(&path)), (b"new".to_vec(), 0o600));
        let exists = create_new(&path, b"x").expect_err("exists");
        assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1);
    }

    /// A reader takes over a spool that is not locked.
    #[test]
    fn held_file_is_never_seen_unlocked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |number: u32| folder.path().join(number.to_string());
        let mut held = Vec::new();
        std::thread::scope(|scope| {
            let finder = scope.spawn(|| {
                (0..200)
                    .filter(|number| {
                        let file = loop {
                            if let Ok(file) = File::open(path(*number)) {
                                break file;
                            }
                            std::thread::yield_now();
                        };
                        file.try_lock_shared().is_ok()
                    })
                    .count()
            });
            held.extend(
                (0..200).map(|number| create_new_held(&path(number), b"x").expect("is new")),
            );
            assert_eq!(finder.join().expect("it finds them all"), 0);
        });
        create_new_held(&path(0), b"x").expect_err("exists");
    }

    #[test]
    fn link_is_replaced_or_refused_and_its_target_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        // The target must not be created through the link.
        symlink(&target, &link).expect("links");
        let exists = create_new(&link, b"x").expect_err("the name is taken");
        assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
        append(&link).expect_err("is a link");
        assert!(!target.exists());
        fs::write(&target, "theirs").expect("writes");
        set_mode(&target, 0o600);
        for refused in
            [append(&link).map(drop), open(&link).map(drop), read_secret(&link).map(drop)]
        {
            let error = refused.expect_err("is a link").to_string();
            assert!(error.contains("symbolic link"), "{error}");
        }
        replace_fleeting(&link, b"ours").expect("replaces");
        assert!(!fs::symlink_metadata(&link).expect("exists").is_symlink());
        assert_eq!(fs::read(&target).expect("reads"), b"theirs");
    }

    #[test]
    fn temporary_names_are_unpredictable() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let names: Vec<_> = (0..2)
            .map(|_| {
                let file = temporary_beside(&path).expect("creates");
                assert_eq!(mode(file.path()), 0o600);
                file.path().to_path_buf()
            })
            .collect();
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.parent() == Some(folder.path()) && !name.exists()));
    }

    #[test]
    fn secret_that_others_can_read_or_write_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        assert_eq!(read_secret(&path).expect("is not there"), None);
        fs::write(&path, "secret").expect("writes");
        for (mode, fault) in [
            (0o600, None),
            (0o400, None),
            (0o640, Some("read by others (mode 640)")),
            (0o604, Some("read by others")),
            (0o620, Some("written by others")),
            (0o602, Some("written by others")),
        ] {
            set_mode(&path, mode);
            let read = read_secret(&path);
            let Some(fault) = fault else {
                assert_eq!(read.expect("is private"), Some("secret".to_owned()));
                continue;
            };
            let error = read.expect_err("is open").to_string();
            let remedy = format!("chmod 600 {}", path.display());
            assert!(error.contains(fault) && error.ends_with(&remedy), "{error}");
        }
        set_mode(&path, 0o600);
        read_secret(folder.path()).expect_err("is a folder");
        fs::hard_link(&path, folder.path().join("second")).expect("links");
        let error = read_secret(&path).expect_err("has a second name").to_string();
        assert!(error.contains("has 2 names (hard links): remove the others"), "{error}");
        fs::remove_file(folder.path().join("second")).expect("is there");
        read_secret(&path).expect("has one name again");
        fs::write(&path, "x".repeat(5000)).expect("writes");
        read_secret(&path).expect_err("is too large");
    }

    #[test]
    fn pipe_or_device_is_refused_without_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).expect("is made");
        symlink("/dev/zero", at("zero")).expect("links");
        symlink("pipe", at("link")).expect("links");
        for name in ["pipe", "zero", "link", "."] {
            let refused = [
                read_settings(&at(name)).map(drop),
                read_secret(&at(name)).map(drop),
                open(&at(name)).map(drop),
                append(&at(name)).map(drop),
            ];
            for refused in refused {
                refused.expect_err(name);
            }
        }
        let error = append(&at("pipe")).expect_err("is a pipe").to_string();
        assert!(error.contains("is not a file") && error.contains("move it away"), "{error}");
        let error = read_settings(&at("pipe")).expect_err("is a pipe").to_string();
        assert_eq!(error, "is no regular file");
        fs::write(at("large"), vec![b'#'; (4 << 20) + 1]).expect("is written");
        set_mode(&at("large"), 0o600);
        let error = read_settings(&at("large")).expect_err("is too large").to_string();
        assert_eq!(error, "is larger than 4096 KiB");
    }

    #[test]
    fn folder_that_others_can_write_or_replace_is_refused() {
        let outer = tempfile::tempdir().expect("a folder");
        let home = outer.path().join("home");
        check_folder(&home).expect("is not there");
        prepare_home(&home).expect("creates");
        assert_eq!(mode(&home), 0o700);
        let link = outer.path().join("link");
        symlink(&home, &link).expect("links");
        for (above, own, passes) in [
            (0o700, 0o700, true),
            (0o700, 0o755, true),
            (0o700, 0o775, false),
            (0o700, 0o757, false),
            (0o1777, 0o700, true),
            (0o777, 0o700, false),
        ] {
            set_mode(&home, own);
            set_mode(outer.path(), above);
            for path in [&home, &link] {
                let judged = prepare_home(path);
                assert_eq!(judged.is_ok(), passes, "{above:o} {own:o} {path:?} {judged:?}");
            }
        }
        set_mode(outer.path(), 0o700);
        fs::write(outer.path().join("file"), "").expect("writes");
        check_folder(&outer.path().join("file")).expect_err("is no folder");
    }

    #[test]
    fn folder_of_another_user_is_refused() {
        let me = rustix::process::geteuid();
        let folder = tempfile::tempdir().expect("a folder");
        // A folder of root; if root runs the test, one of `nobody`.
        let theirs = if me.is_root() {
            std::os::unix::fs::chown(folder.path(), Some(65534), None).expect("root may");
            folder.path()
        } else {
            Path::new("/usr")
        };
        let error = check_folder(theirs).expect_err("belongs to somebody else").to_string();
        let remedy = format!("`chown {} {}`", me.as_raw(), theirs.display());
        assert!(error.contains("belongs to user") && error.ends_with(&remedy), "{error}");
    }

    #[test]
    fn public_file_replaces_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        fs::write(&target, "theirs").expect("writes");
        symlink(&target, &link).expect("links");
        replace_public(&link, b"ours").expect("replaces");
        assert_eq!((fs::read(&link).expect("reads"), mode(&link)), (b"ours".to_vec(), 0o644));
        assert_eq!(fs::read(&target).expect("reads"), b"theirs");
    }

    #[test]
    fn appended_file_loses_write_permission_of_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        append(&path).expect("creates");
        assert_eq!(mode(&path), 0o600);
        set_mode(&path, 0o666);
        append(&path).expect("opens");
        assert_eq!(mode(&path), 0o644);
    }

    #[test]
    fn links_to_what_is_ours_are_followed_and_no_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["real", "real/deep", "open"] {
            fs::create_dir(at(name)).expect("a folder");
            set_mode(&at(name), 0o700);
        }
        fs::write(at("real/deep/file"), "{}").expect("writes");
        set_mode(&at("real/deep/file"), 0o600);
        let real = fs::canonicalize(at("real/deep/file")).expect("exists");
        symlink("real/deep", at("folder")).expect("links");
        symlink("../real/../folder/file", at("open/link")).expect("links");
        for path in ["real/deep/file", "folder/file", "open/link"] {
            assert_eq!(resolve_own(&at(path)).expect(path), real);
            assert_eq!(read_own(&at(path), 2).expect(path), "{}");
        }
        assert!(read_own(&at("folder/file"), 1).is_err(), "it is longer");
        assert!(resolve_own(Path::new("real")).is_err() && resolve_own(&at("none")).is_err());
        // Others could change the link, replace the file, or write to it.
        for (path, mode) in [("open", 0o777), ("real/deep", 0o770), ("real/deep/file", 0o620)] {
            let before = self::mode(&at(path));
            set_mode(&at(path), mode);
            assert!(read_own(&at("open/link"), 2).is_err(), "{path} {mode:o}");
            set_mode(&at(path), before);
        }
        assert!(read_own(&at("open/link"), 2).is_ok());
        symlink("loop", at("loop")).expect("links");
        assert!(resolve_own(&at("loop")).is_err());
    }

    #[test]
    fn missing_folder_is_judged_by_its_parent() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(existing_folder(&folder.path().join("a/b")), folder.path());
    }
}
