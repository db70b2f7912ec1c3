//! The disk as a folder of this machine (FUSE).

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use super::disk::{Disk, NameChange, Node, now};
use crate::crash::Chance;
use crate::daemon::eventually;

/// The kernel caches nothing beyond a call but content of files.
const TTL: Duration = Duration::ZERO;
/// Longest time for which a killed process keeps a file open.
const LET_GO_WITHIN: Duration = Duration::from_secs(30);

/// A mounted disk. Dropping it unmounts it.
#[derive(Debug)]
pub(super) struct PowerDisk {
    disk: Arc<Mutex<Disk>>,
    session: Option<BackgroundSession>,
    at: PathBuf,
}

#[derive(Debug, Clone)]
struct Mounted(Arc<Mutex<Disk>>);

impl PowerDisk {
    /// Mounts an empty disk, if this machine can.
    pub(super) fn mount(at: &Path) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "only root may mount it"));
        }
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let disk = Arc::new(Mutex::new(Disk::new(owner)));
        let session = Some(mounted(&disk, at)?);
        Ok(Self { disk, session, at: at.to_owned() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_off(&self) -> bool {
        self.lock().is_off
    }

    /// Restores the power. No process may have a file of it open any more.
    pub(super) fn restore(&mut self, chance: &mut Chance) {
        self.unmount();
        self.lock().restore(chance);
        self.session = Some(mounted(&self.disk, &self.at).expect("it was mounted before"));
    }

    fn unmount(&mut self) {
        let Some(session) = self.session.take() else { return };
        // Files of an ended process are closed a moment later.
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH).expect("is mounted");
        eventually(LET_GO_WITHIN, || session.guard.is_finished());
        drop(session.join());
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Blocked calls fail from here on.
            rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH).ok();
            drop(session);
        }
    }
}

fn mounted(disk: &Arc<Mutex<Disk>>, at: &Path) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::DefaultPermissions];
    config.n_threads = Some(2);
    fuser::spawn_mount(Mounted(Arc::clone(disk)), at, &config)
}

impl Mounted {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, made: impl FnOnce(&mut Disk) -> Result<u64, Errno>, reply: ReplyEntry) {
        let mut disk = self.disk();
        let found = made(&mut disk).and_then(|id| Ok(disk.node(id)?.attributes(id)));
        match found {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn attributes(
        &self,
        change: impl FnOnce(&mut Disk) -> Result<(), Errno>,
        id: u64,
        reply: ReplyAttr,
    ) {
        let mut disk = self.disk();
        let changed = change(&mut disk).and_then(|()| Ok(disk.node(id)?.attributes(id)));
        match changed {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn done(&self, change: impl FnOnce(&mut Disk) -> Result<(), Errno>, reply: ReplyEmpty) {
        match change(&mut self.disk()) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

fn new_node(request: &Request, kind: FileType, mode: u32, umask: u32) -> Node {
    let mode = u16::try_from(mode & 0o7777 & !umask).expect("twelve bits");
    Node::new(kind, mode, (request.uid(), request.gid()))
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The file type in the bits of a mode.
fn kind_of(mode: u32) -> FileType {
    match mode & 0o170_000 {
        0o140_000 => FileType::Socket,
        0o010_000 => FileType::NamedPipe,
        _ => FileType::RegularFile,
    }
}

impl Filesystem for Mounted {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(|disk| disk.find(parent.0, name), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attributes(|_| Ok(()), ino.0, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        length: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = |disk: &mut Disk| {
            if let Some(length) = length {
                disk.resize(ino.0, size(length))?;
            }
            if mode.is_some() || uid.is_some() || gid.is_some() {
                let mode = mode.map(|mode| u16::try_from(mode & 0o7777).expect("twelve bits"));
                disk.set_mode(ino.0, mode, (uid, gid))?;
            }
            if let Some(mtime) = mtime {
                disk.node(ino.0)?.changed = match mtime {
                    TimeOrNow::SpecificTime(at) => at,
                    TimeOrNow::Now => now(),
                };
            }
            Ok(())
        };
        self.attributes(change, ino.0, reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.disk().node(ino.0) {
            Ok(node) => reply.data(&node.bytes),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let node = new_node(request, kind_of(mode), mode, umask);
        self.entry(|disk| disk.make(parent.0, name, node), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let node = new_node(request, FileType::Directory, mode, umask);
        self.entry(|disk| disk.make(parent.0, name, node), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let mut node = new_node(request, FileType::Symlink, 0o777, 0);
        node.bytes = target.as_os_str().as_encoded_bytes().to_vec();
        self.entry(|disk| disk.make(parent.0, name, node), reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let make = |disk: &mut Disk| {
            if disk.find(parent.0, name).is_ok() {
                return Err(Errno::EEXIST);
            }
            disk.rename(vec![(parent.0, name.to_owned(), Some(ino.0))])?;
            Ok(ino.0)
        };
        self.entry(make, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |disk: &mut Disk| {
            disk.find(parent.0, name)?;
            disk.rename(vec![(parent.0, name.to_owned(), None)])
        };
        self.done(remove, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |disk: &mut Disk| {
            let id = disk.find(parent.0, name)?;
            if !disk.node(id)?.names.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            disk.rename(vec![(parent.0, name.to_owned(), None)])
        };
        self.done(remove, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = |disk: &mut Disk| {
            let id = disk.find(parent.0, name)?;
            let there = disk.find(newparent.0, newname);
            if flags.contains(RenameFlags::RENAME_NOREPLACE) && there.is_ok() {
                return Err(Errno::EEXIST);
            }
            if flags.contains(RenameFlags::RENAME_EXCHANGE) {
                return Err(Errno::EINVAL);
            }
            if there == Ok(id) {
                return Ok(());
            }
            let changes: Vec<NameChange> = vec![
                (parent.0, name.to_owned(), None),
                (newparent.0, newname.to_owned(), Some(id)),
            ];
            disk.rename(changes)
        };
        self.done(rename, reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk().node(ino.0) {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let node = new_node(request, FileType::RegularFile, mode, umask);
        let mut disk = self.disk();
        let made = disk.make(parent.0, name, node).and_then(|id| Ok(disk.node(id)?.attributes(id)));
        match made {
            Ok(attributes) => {
                let (generation, handle) = (Generation(0), FileHandle(0));
                reply.created(&TTL, &attributes, generation, handle, FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        most: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk().node(ino.0) {
            Ok(node) => {
                let start = size(offset).min(node.bytes.len());
                let end = start.saturating_add(size(most.into())).min(node.bytes.len());
                reply.data(&node.bytes[start..end]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.disk().write(ino.0, size(offset), data) {
            Ok(()) => reply.written(u32::try_from(data.len()).expect("one request")),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.done(|disk| disk.sync(ino.0), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.done(|disk| disk.sync(ino.0), reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut disk = self.disk();
        let names = match disk.node(ino.0) {
            Ok(node) => node.names.clone(),
            Err(error) => {
                reply.error(error);
                return;
            }
        };
        // The offset is the id, which grows: a removal meanwhile makes no reader skip another name.
        let mut entries: Vec<_> = names.into_iter().map(|(name, id)| (id, name)).collect();
        entries.sort();
        let dots = [(1, ".".into()), (2, "..".into())].map(|(at, name)| (at, ino.0, name));
        let entries = entries.into_iter().map(|(id, name)| (id + 2, id, name));
        for (at, id, name) in dots.into_iter().chain(entries).filter(|(at, ..)| *at > offset) {
            let kind = disk.node(id).map_or(FileType::RegularFile, |node| node.kind);
            if reply.add(INodeNo(id), at, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = 1 << 22;
        reply.statfs(blocks, blocks, blocks, blocks, blocks, 4096, 255, 4096);
    }
}
