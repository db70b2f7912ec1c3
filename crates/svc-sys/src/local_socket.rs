//! A Unix socket in a folder of ours: bound for its owner alone, and connected to only if its owner answers.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

/// The wait before another attempt to connect when the listener's queue is full. The system gives no notice.
const QUEUE_POLL: Duration = Duration::from_millis(5);

/// The file of a socket that this process listens on. Dropping it removes the file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: by them the file is known again.
    file: (u64, u64),
}

/// Why a socket is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no socket, or nobody listens on it.
    #[error("nobody listens on {}", .0.display())]
    Absent(PathBuf),
    /// The socket, its folder or the process behind it is another user's.
    #[error("{subject} belongs to user {owner} and not to user {user}, who asks")]
    Foreign {
        /// The file, or the process that listens.
        subject: String,
        /// Who has it.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// The system reports something else.
    #[error("{}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What it reports.
        #[source]
        source: io::Error,
    },
}

/// Listens on `path`, mode 0600, in the place of whatever file is there.
///
/// The socket is bound under a random name, then renamed: nobody connects to it before its mode is set, and a socket
/// that a killed process left behind is replaced. Only who holds a lock on the folder may call this.
pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).map_err(io::Error::other)?;
    let temporary = path.with_file_name(format!(".{}", hex::encode(suffix)));
    let address = Address::of(&temporary)?;
    let listener = UnixListener::bind(&address.path)?;
    let renamed = fs::set_permissions(&temporary, Permissions::from_mode(0o600))
        .and_then(|()| fs::symlink_metadata(&temporary))
        .and_then(|metadata| fs::rename(&temporary, path).map(|()| metadata));
    match renamed {
        Ok(metadata) => {
            Ok((listener, SocketFile { path: path.to_owned(), file: identity(&metadata) }))
        }
        Err(error) => {
            fs::remove_file(&temporary).ok();
            Err(error)
        }
    }
}

impl Drop for SocketFile {
    /// Removes the file, unless it is another's by now. One that stays behind is replaced by the next start.
    fn drop(&mut self) {
        let current = fs::symlink_metadata(&self.path);
        if current.is_ok_and(|metadata| identity(&metadata) == self.file) {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Connects to the socket at `path`, and checks that it, its folder and the process that listens are of the effective
/// user of this process.
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
    check_owner(folder, &fs::metadata(folder).map_err(failed)?)?;
    check_owner(path, &metadata)?;
    let address = Address::of(path).map_err(failed)?;
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

/// A path that fits into the address of a socket, which has room for about a hundred bytes.
struct Address {
    path: PathBuf,
    /// The folder that the path goes through, where the plain path is too long.
    _folder: Option<OwnedFd>,
}

impl Address {
    fn of(path: &Path) -> io::Result<Self> {
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

fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), ConnectError> {
    check_user(|| path.display().to_string(), metadata.uid())
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
    async fn a_socket_is_private_replaces_a_stale_one_and_leaves_nothing_behind() {
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
    async fn a_path_may_be_longer_than_an_address() {
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
    async fn what_is_no_socket_or_a_link_to_one_is_not_connected_to() {
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

    #[test]
    fn another_users_file_is_named_with_its_owner() {
        let user = rustix::process::geteuid().as_raw();
        check_user(|| "x".to_owned(), user).unwrap();
        let error = check_user(|| "the file".to_owned(), user + 1).unwrap_err().to_string();
        assert!(error.contains("the file") && error.contains(&(user + 1).to_string()), "{error}");
    }
}
