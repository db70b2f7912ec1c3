//! A disk whose power can be cut: a file system in memory that loses what was not synced.
//!
//! All processes see each write at once, as with the page cache. Content is durable once its file
//! was synced, and a name once its folder was. A random part of the rest survives a cut, as the
//! kernel writes back at any time.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo};

use crate::crash::Chance;

#[expect(clippy::disallowed_methods, reason = "the times of a disk are those of its machine")]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

/// The unit of an atomic write.
const SECTOR: usize = 512;
/// The unit of the kernel's write-back.
const PAGE: usize = 4096;

/// A file, a folder, a link or a socket.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) kind: FileType,
    pub(super) mode: u16,
    pub(super) owner: (u32, u32),
    pub(super) changed: SystemTime,
    /// The content of a file, or the target of a link.
    pub(super) bytes: Vec<u8>,
    /// The names in a folder.
    pub(super) names: BTreeMap<OsString, u64>,
    /// The number of its names.
    pub(super) links: u32,
}

/// A name in a folder, and its new target.
pub(super) type NameChange = (u64, OsString, Option<u64>);

/// A change that is not durable yet.
#[derive(Debug, Clone)]
enum Change {
    Bytes {
        node: u64,
        at: usize,
        bytes: Vec<u8>,
    },
    Length {
        node: u64,
        length: usize,
    },
    Mode {
        node: u64,
        mode: u16,
        owner: (u32, u32),
    },
    /// All of them or none: a rename is atomic.
    Names(Vec<NameChange>),
}

/// What happens to changes that were not synced.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// All are lost.
    All,
    /// Those after some moment are lost, and the write at that moment is torn.
    Late,
    /// Any page is lost, and names after some moment.
    Any,
}

/// The visible state, and the durable state.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) seen: BTreeMap<u64, Node>,
    stored: BTreeMap<u64, Node>,
    pending: Vec<Change>,
    next: u64,
    pub(super) is_off: bool,
    /// The number of changes and syncs until the power cut.
    steps_left: Option<u64>,
    /// The number of lost changes.
    pub(super) lost: usize,
}

impl Node {
    pub(super) fn new(kind: FileType, mode: u16, owner: (u32, u32)) -> Self {
        Self {
            kind,
            mode,
            owner,
            changed: now(),
            bytes: Vec::new(),
            names: BTreeMap::new(),
            links: if kind == FileType::Directory { 2 } else { 0 },
        }
    }

    pub(super) fn attributes(&self, id: u64) -> FileAttr {
        let size = self.bytes.len() as u64;
        FileAttr {
            ino: INodeNo(id),
            size,
            blocks: size.div_ceil(SECTOR as u64),
            atime: self.changed,
            mtime: self.changed,
            ctime: self.changed,
            crtime: self.changed,
            kind: self.kind,
            perm: self.mode,
            nlink: self.links,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: u32::try_from(PAGE).expect("small"),
            flags: 0,
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(bytes);
    }
}

impl Disk {
    pub(super) fn new(owner: (u32, u32)) -> Self {
        let root = Node::new(FileType::Directory, 0o700, owner);
        let seen = BTreeMap::from([(INodeNo::ROOT.0, root)]);
        let stored = seen.clone();
        let next = INodeNo::ROOT.0 + 1;
        Self { seen, stored, pending: Vec::new(), next, is_off: false, steps_left: None, lost: 0 }
    }

    pub(super) fn node(&mut self, id: u64) -> Result<&mut Node, Errno> {
        if self.is_off {
            return Err(Errno::EIO);
        }
        self.seen.get_mut(&id).ok_or(Errno::ENOENT)
    }

    pub(super) fn find(&mut self, folder: u64, name: &OsStr) -> Result<u64, Errno> {
        self.node(folder)?.names.get(name).copied().ok_or(Errno::ENOENT)
    }

    /// Creates a node under a name that must be free.
    pub(super) fn make(&mut self, folder: u64, name: &OsStr, node: Node) -> Result<u64, Errno> {
        if self.find(folder, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.node(folder)?;
        let id = self.next;
        self.next += 1;
        // It is unreachable on the disk before its name is durable. A link is durable with its
        // target.
        self.stored.insert(id, node.clone());
        self.seen.insert(id, node);
        self.rename(vec![(folder, name.to_owned(), Some(id))])?;
        Ok(id)
    }

    /// Counts down to the power cut.
    fn step(&mut self) -> Result<(), Errno> {
        if let Some(left) = self.steps_left.as_mut() {
            *left = left.saturating_sub(1);
            self.is_off |= *left == 0;
        }
        if self.is_off { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Changes names atomically.
    pub(super) fn rename(&mut self, changes: Vec<NameChange>) -> Result<(), Errno> {
        self.step()?;
        for (folder, ..) in &changes {
            self.node(*folder)?;
        }
        put_names(&mut self.seen, &changes);
        self.pending.push(Change::Names(changes));
        Ok(())
    }

    pub(super) fn write(&mut self, id: u64, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.step()?;
        let node = self.node(id)?;
        node.put(at, bytes);
        node.changed = now();
        // By pages, each of which becomes durable by itself.
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, after) = rest.split_at(rest.len().min(PAGE - at % PAGE));
            self.pending.push(Change::Bytes { node: id, at, bytes: page.to_vec() });
            at += page.len();
            rest = after;
        }
        Ok(())
    }

    pub(super) fn resize(&mut self, id: u64, length: usize) -> Result<(), Errno> {
        self.step()?;
        let node = self.node(id)?;
        node.bytes.resize(length, 0);
        node.changed = now();
        self.pending.push(Change::Length { node: id, length });
        Ok(())
    }

    pub(super) fn set_mode(
        &mut self,
        id: u64,
        mode: Option<u16>,
        owner: (Option<u32>, Option<u32>),
    ) -> Result<(), Errno> {
        let node = self.node(id)?;
        let mode = mode.unwrap_or(node.mode);
        let owner = (owner.0.unwrap_or(node.owner.0), owner.1.unwrap_or(node.owner.1));
        (node.mode, node.owner) = (mode, owner);
        self.pending.push(Change::Mode { node: id, mode, owner });
        Ok(())
    }

    /// Makes a file, or the names in a folder, durable.
    pub(super) fn sync(&mut self, id: u64) -> Result<(), Errno> {
        self.step()?;
        self.node(id)?;
        // A rename from one folder to another makes earlier changes in the other durable, too.
        let mut folders = HashSet::from([id]);
        let mut rest = Vec::new();
        let mut synced = Vec::new();
        for change in self.pending.drain(..).rev() {
            let is_of = match &change {
                Change::Bytes { node, .. }
                | Change::Length { node, .. }
                | Change::Mode { node, .. } => *node == id,
                Change::Names(names) => names.iter().any(|(folder, ..)| folders.contains(folder)),
            };
            if let (true, Change::Names(names)) = (is_of, &change) {
                folders.extend(names.iter().map(|(folder, ..)| *folder));
            }
            if is_of { synced.push(change) } else { rest.push(change) }
        }
        rest.reverse();
        self.pending = rest;
        for change in synced.iter().rev() {
            apply(&mut self.stored, change, None);
        }
        Ok(())
    }

    /// Makes everything durable.
    pub(super) fn sync_all(&mut self) {
        for change in self.pending.drain(..) {
            apply(&mut self.stored, &change, None);
        }
    }

    /// Cuts the power after `steps` changes and syncs: later reads and writes fail.
    pub(super) fn cut_after(&mut self, steps: u64) {
        self.steps_left = Some(steps);
        self.is_off |= steps == 0;
    }

    /// Restores the power: the visible state becomes the durable one, with a random part of the
    /// other changes.
    pub(super) fn restore(&mut self, chance: &mut Chance) {
        let pending = std::mem::take(&mut self.pending);
        let loss =
            [Loss::All, Loss::Late, Loss::Any][usize::try_from(chance.below(3)).expect("few")];
        let count = pending.len() as u64;
        let moment = usize::try_from(chance.below(count + 1)).expect("fits");
        for (number, change) in pending.iter().enumerate() {
            let is_kept = match (loss, change) {
                (Loss::All, _) => false,
                (Loss::Late, _) | (Loss::Any, Change::Names(_)) => number < moment,
                (Loss::Any, _) => chance.below(2) == 0,
            };
            if is_kept {
                apply(&mut self.stored, change, None);
            } else if matches!(loss, Loss::Late) && number == moment {
                // The last write is torn between two sectors.
                apply(&mut self.stored, change, Some(&mut *chance));
            }
            self.lost += usize::from(!is_kept);
        }
        self.free_unnamed_nodes();
        self.seen.clone_from(&self.stored);
        (self.is_off, self.steps_left) = (false, None);
    }

    /// Frees nodes without a name, and counts the names of the others.
    fn free_unnamed_nodes(&mut self) {
        let mut links: BTreeMap<u64, u32> = BTreeMap::new();
        let mut reached = vec![INodeNo::ROOT.0];
        while let Some(folder) = reached.pop() {
            let names = self.stored.get(&folder).into_iter().flat_map(|node| node.names.values());
            for id in names {
                let count = links.entry(*id).or_default();
                *count += 1;
                if *count == 1 {
                    reached.push(*id);
                }
            }
        }
        self.stored.retain(|id, node| {
            let count = links.get(id).copied().unwrap_or_default();
            if node.kind != FileType::Directory {
                node.links = count;
            }
            count > 0 || *id == INodeNo::ROOT.0
        });
    }
}

/// Applies a change, or the first sectors of one, to the durable state.
fn apply(stored: &mut BTreeMap<u64, Node>, change: &Change, torn: Option<&mut Chance>) {
    match change {
        Change::Bytes { node, at, bytes } => {
            let whole = match torn {
                None => bytes.len(),
                Some(chance) => {
                    let sectors = chance.below((bytes.len() / SECTOR) as u64 + 1);
                    usize::try_from(sectors).expect("few") * SECTOR
                }
            };
            if let Some(node) = stored.get_mut(node) {
                node.put(*at, &bytes[..whole]);
            }
        }
        // The others are atomic.
        _ if torn.is_some() => {}
        Change::Length { node, length } => {
            if let Some(node) = stored.get_mut(node) {
                node.bytes.resize(*length, 0);
            }
        }
        Change::Mode { node, mode, owner } => {
            if let Some(node) = stored.get_mut(node) {
                (node.mode, node.owner) = (*mode, *owner);
            }
        }
        Change::Names(names) => put_names(stored, names),
    }
}

fn put_names(nodes: &mut BTreeMap<u64, Node>, changes: &[NameChange]) {
    for (folder, name, id) in changes {
        let Some(folder) = nodes.get_mut(folder) else { continue };
        let before = match id {
            Some(id) => folder.names.insert(name.clone(), *id),
            None => folder.names.remove(name),
        };
        for (id, is_more) in [(before, false), (*id, true)] {
            let node = id.and_then(|id| nodes.get_mut(&id));
            if let Some(node) = node.filter(|node| node.kind != FileType::Directory) {
                node.links = if is_more { node.links + 1 } else { node.links.saturating_sub(1) };
            }
        }
    }
}

#[test]
fn unsynced_writes_are_lost() {
    let mut disk = Disk::new((0, 0));
    let root = INodeNo::ROOT.0;
    let file = |disk: &mut Disk, name: &str| {
        let id = disk.make(root, name.as_ref(), Node::new(FileType::RegularFile, 0o600, (0, 0)));
        id.expect("is new")
    };
    for seed in 0..300 {
        let kept = file(&mut disk, "kept");
        disk.write(kept, 0, b"old").expect("writes");
        disk.sync(kept).expect("syncs");
        disk.sync(root).expect("syncs");
        let new = file(&mut disk, "new");
        disk.write(new, 0, &[b'x'; 3 * PAGE]).expect("writes");
        disk.sync(new).expect("syncs");
        disk.rename(vec![(root, "new".into(), None), (root, "kept".into(), Some(new))])
            .expect("renames");
        disk.write(new, PAGE, b"later").expect("writes");
        disk.cut_after(0);
        assert!(disk.node(kept).is_err(), "it is off");
        disk.restore(&mut Chance(seed));
        let id = disk.find(root, "kept".as_ref()).expect("the name is old");
        let bytes = disk.node(id).expect("is there").bytes.clone();
        if id == new {
            assert_eq!(bytes.len(), 3 * PAGE);
            assert!(bytes.starts_with(b"xxx"), "what was synced before its name");
        } else {
            assert_eq!(bytes, b"old");
        }
        let names = disk.node(root).expect("is there").names.clone();
        disk.rename(names.into_keys().map(|name| (root, name, None)).collect()).expect("clears");
        disk.sync(root).expect("syncs");
    }
    assert!(disk.lost > 0, "something was lost");
}
