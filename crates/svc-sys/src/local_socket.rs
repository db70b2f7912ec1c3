//! A Unix socket in a folder of ours. It is bound for its owner alone, and a client connects only
//! if the same user listens.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use svc_model::ProcessIdentity;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use crate::{private_file, process_list};

/// Delay before a retry when the listener's queue is full, as the system sends no notice.
const QUEUE_POLL: Duration = Duration::from_millis(5);

/// The file of a socket. Dropping it removes the file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No socket, or no listener.
    #[error("nobody listens on {}", .0.display())]
    Absent(PathBuf),
    /// The socket, its folder or its listener belongs to another user.
    #[error("{subject} belongs to user {owner} and not to user {user}, who asks")]
    Foreign {
        /// The file, or the process that listens on it.
        subject: String,
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// The listener is not the expected process.
    #[error("{} is not the socket of process {pid}", .path.display())]
    OtherProcess { path: PathBuf, pid: u32 },
    #[error("{}", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Listens on `path`, mode 0600, and replaces any file there.
///
/// The socket is bound under a random name and then renamed, so nobody connects before its mode is
/// set, and the socket of a killed process is replaced. The caller holds a lock on the folder.
pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let bind = |temporary: &Path| UnixListener::bind(&Address::new(temporary)?.path);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let bound = tempfile::Builder::new().prefix(".").rand_bytes(16).make_in(folder, bind)?;
    fs::set_permissions(bound.path(), Permissions::from_mode(0o600))?;
    let file = identity(&fs::symlink_metadata(bound.path())?);
    let (listener, temporary) = bound.into_parts();
    temporary.persist(path)?;
    Ok((listener, SocketFile { path: path.to_owned(), file }))
}

impl Drop for SocketFile {
    /// Removes the file unless another process has replaced it. If the file stays, the next start
    /// replaces it.
    fn drop(&mut self) {
        let current = fs::symlink_metadata(&self.path);
        if current.is_ok_and(|metadata| identity(&metadata) == self.file) {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Connects to the socket at `path`. Checks that the socket, its folder and its listener belong to
/// the effective user of this process.
pub async fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ConnectError::Absent(path.to_owned()),
        _ => ConnectError::Io { path: path.to_owned(), source },
    };
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    if !metadata.file_type().is_socket() {
        return Err(failed(io::Error::other("is no socket")));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let folder_owner = fs::metadata(folder).map_err(failed)?.uid();
    check_user(|| folder.display().to_string(), folder_owner)?;
    check_user(|| path.display().to_string(), metadata.uid())?;
    let address = Address::new(path).map_err(failed)?;
    let stream = loop {
        match UnixStream::connect(&address.path).await {
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(QUEUE_POLL).await,
            connected => break connected.map_err(failed)?,
        }
    };
    let peer = stream.peer_cred().map_err(failed)?;
    check_user(|| format!("the process that listens on {}", path.display()), peer.uid())?;
    Ok(stream)
}

/// As [`connect`], to a socket of another program of this user. Applies the rules of
/// [`private_file::resolve_own`], and requires that exactly this process listens. Writes nothing.
pub async fn connect_to_process(
    path: &Path,
    process: &ProcessIdentity,
) -> Result<UnixStream, ConnectError> {
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::NotFound => ConnectError::Absent(path.to_owned()),
        _ => ConnectError::Io { path: path.to_owned(), source },
    };
    let socket = private_file::resolve_own(path).map_err(failed)?;
    let stream = connect(&socket).await?;
    let listener = stream.peer_cred().map_err(failed)?.pid();
    let is_it = listener == i32::try_from(process.pid).ok() && listener.is_some();
    // The process is alive after the connection was made, so its pid belonged to no other process
    // then.
    if is_it && process_list::is_same_running(process) {
        return Ok(stream);
    }
    Err(ConnectError::OtherProcess { path: path.to_owned(), pid: process.pid })
}

/// A path that fits into a socket's address, which holds about a hundred bytes.
struct Address {
    path: PathBuf,
    /// Kept open if the path goes through `/proc/self/fd`, because the plain path is too long.
    _folder: Option<OwnedFd>,
}

impl Address {
    fn new(path: &Path) -> io::Result<Self> {
        if SocketAddr::from_pathname(path).is_ok() {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::other("names no file in a folder"));
        };
        if !cfg!(target_os = "linux") {
            return Err(io::Error::other(
                "the path is too long for a socket: set SVC_HOME to a folder with a shorter path",
            ));
        }
        let folder = File::options()
            .read(true)
            .custom_flags(rustix::fs::OFlags::DIRECTORY.bits().cast_signed())
            .open(folder)?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder.into()) })
    }
}

fn check_user(subject: impl FnOnce() -> String, owner: u32) -> Result<(), ConnectError> {
    let user = rustix::process::geteuid().as_raw();
    if owner == user {
        return Ok(());
    }
    Err(ConnectError::Foreign { subject: subject(), owner, user })
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_is_private_and_replaces_a_stale_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.sock");
        assert!(matches!(connect(&path).await, Err(ConnectError::Absent(_))));
        let (first, stale) = listen(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(first);
        assert!(matches!(connect(&path).await, Err(ConnectError::Absent(_))), "nobody listens");
        let (second, current) = listen(&path).unwrap();
        drop(stale);
        let stream = connect(&path).await.unwrap();
        let (_, peer) = (stream, second.accept().await.unwrap());
        drop(peer);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        drop(current);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn path_may_be_longer_than_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("n".repeat(200));
        fs::create_dir(&long).unwrap();
        let path = long.join("svc.sock");
        let (listener, file) = listen(&path).unwrap();
        connect(&path).await.unwrap();
        listener.accept().await.unwrap();
        drop(file);
        assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn file_or_link_is_not_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.sock");
        fs::write(&path, "").unwrap();
        assert!(matches!(connect(&path).await, Err(ConnectError::Io { .. })));
        fs::remove_file(&path).unwrap();
        let elsewhere = folder.path().join("other.sock");
        let (_listener, _file) = listen(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(matches!(connect(&path).await, Err(ConnectError::Io { .. })));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn only_the_process_that_is_meant_is_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inbox.sock");
        let (listener, _file) = listen(&path).unwrap();
        let own = std::process::id();
        let own = process_list::ProcessEntry::read(own).unwrap().identity(own);
        connect_to_process(&path, &own).await.unwrap();
        listener.accept().await.unwrap();
        let earlier = ProcessIdentity { started: "1@".to_owned(), ..own.clone() };
        let parent = std::os::unix::process::parent_id();
        let parent = process_list::ProcessEntry::read(parent).unwrap().identity(parent);
        for other in [earlier, parent] {
            let refused = connect_to_process(&path, &other).await;
            assert!(matches!(refused, Err(ConnectError::OtherProcess { .. })), "{refused:?}");
        }
        // A link leads to the same socket as long as nobody else can change the link.
        let link = folder.path().join("link.sock");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        connect_to_process(&link, &own).await.unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let refused = connect_to_process(&path, &own).await;
        assert!(matches!(refused, Err(ConnectError::Io { .. })), "{refused:?}");
    }

    #[test]
    fn error_of_a_foreign_file_names_its_owner() {
        let user = rustix::process::geteuid().as_raw();
        check_user(|| "x".to_owned(), user).unwrap();
        let error = check_user(|| "the file".to_owned(), user + 1).unwrap_err().to_string();
        assert!(error.contains("the file") && error.contains(&(user + 1).to_string()), "{error}");
    }
}
