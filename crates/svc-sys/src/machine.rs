//! The identity of this machine: a data folder on a host.
//!
//! The folder stores an id for each host that has used it. So a folder on a shared disk is another
//! machine on each host, and a host that returns gets its id back. A copy of the database has no
//! such file, so its new folder is another machine.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};
use svc_model::{Clock as _, Ids, Machine, MachineId, SystemClock};

use crate::private_file;

/// The number of Linux's initial pid namespace.
const FIRST_PID_NAMESPACE: &str = "4026531836";
/// Most hosts whose ids a folder stores; the oldest are dropped.
const MOST_HOSTS: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// A digest, as the system's id is confidential (`machine-id(5)`).
    key: String,
    name: String,
}

impl HostIdentity {
    /// This host, identified by `/etc/machine-id`, else by the chosen name, else by the host's
    /// name.
    pub fn of_this(chosen: Option<&str>) -> Self {
        let id = fs::read_to_string("/etc/machine-id").ok();
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self::from_parts(id.as_deref(), chosen, &own)
    }

    /// An id that is not set, as in a container's image, is ignored.
    fn from_parts(id: Option<&str>, chosen: Option<&str>, own: &str) -> Self {
        let id = id.map(str::trim);
        let id = id.filter(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let known = match (id, chosen) {
            (Some(id), _) => format!("id {id}"),
            (None, Some(name)) => format!("name {name}"),
            (None, None) => format!("host {own}"),
        };
        let digest = hex::encode(Sha256::digest(format!("svc machine\n{known}")));
        let name = chosen.unwrap_or(if own.is_empty() { "localhost" } else { own });
        Self { key: digest[..32].to_owned(), name: name.to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThisMachine {
    pub machine: Machine,
    /// The host's key, a digest.
    pub host: String,
}

impl ThisMachine {
    /// The machine of a data folder on a host. The first call on a host creates its id.
    pub fn open(folder: &Path, host: &HostIdentity) -> io::Result<Self> {
        let path = folder.join("machines");
        let text = private_file::read_secret(&path)?.unwrap_or_default();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let this = |machine_id| Self {
            machine: Machine { machine_id, name: host.name.clone() },
            host: host.key.clone(),
        };
        for line in &lines {
            let known = line.split_once(' ');
            let Some((key, id)) = known.and_then(|(key, id)| Some((key, MachineId::parse(id)?)))
            else {
                let why = format!("{} has a line that is no host and its id", path.display());
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            };
            if key == host.key {
                return Ok(this(id));
            }
        }
        let id = MachineId::new(&Ids::random(), SystemClock.now());
        let line = format!("{} {id}", host.key);
        lines.push(&line);
        let first = lines.len().saturating_sub(MOST_HOSTS);
        let text: String = lines[first..].iter().flat_map(|line| [*line, "\n"]).collect();
        private_file::replace(&path, text.as_bytes())?;
        Ok(this(id))
    }
}

/// Identifies the boot of the system and the pid namespace: in another one, the same pid is another
/// process.
pub fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let boot = kernel_boot();
        let namespace = pid_namespace();
        if namespace.is_empty() { boot } else { format!("{boot}/{namespace}") }
    })
}

pub fn kernel_boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map(|boot| boot.trim().to_owned()).unwrap_or_default()
}

/// The pid namespace; empty if it is the initial one.
fn pid_namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let link = link.to_string_lossy();
    let number = link.strip_prefix("pid:[").and_then(|rest| rest.strip_suffix(']'));
    number.filter(|number| *number != FIRST_PID_NAMESPACE).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_its_id_then_its_chosen_name_then_its_own() {
        let host = HostIdentity::from_parts;
        let id = "3d1219c7c4c5404aaa1f6d2a48adfda4";
        assert_eq!(
            host(Some(id), Some("a"), "h").key,
            host(Some(&format!("{id}\n")), None, "g").key
        );
        assert_eq!(host(None, Some("a"), "h").key, host(Some("uninitialized"), Some("a"), "g").key);
        assert_eq!(host(None, None, "h").key, host(Some(""), None, "h").key);
        let keys = [host(Some(id), None, "h"), host(None, Some("h"), "h"), host(None, None, "h")];
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
        assert!(keys.iter().all(|host| !host.key.contains(&id[..8])), "the id is not shown");
        let names =
            [host(Some(id), Some("a"), "h"), host(Some(id), None, "h"), host(None, None, "")];
        assert_eq!(names.map(|host| host.name), ["a", "h", "localhost"]);
    }

    #[test]
    fn a_host_that_returns_has_its_id_back() {
        let folder = tempfile::tempdir().unwrap();
        let host = |name| HostIdentity::from_parts(None, None, name);
        let (a, b) = (host("a"), host("b"));
        let first = ThisMachine::open(folder.path(), &a).unwrap();
        let second = ThisMachine::open(folder.path(), &b).unwrap();
        assert_ne!(first.machine.machine_id, second.machine.machine_id);
        assert_eq!(ThisMachine::open(folder.path(), &a).unwrap(), first);
        assert_eq!(ThisMachine::open(folder.path(), &b).unwrap(), second);
        let elsewhere = tempfile::tempdir().unwrap();
        assert_ne!(ThisMachine::open(elsewhere.path(), &a).unwrap(), first, "another folder");
        // A damaged file is an error and no reason to create a new id.
        fs::write(folder.path().join("machines"), "nothing\n").unwrap();
        assert!(ThisMachine::open(folder.path(), &a).is_err());
    }
}
