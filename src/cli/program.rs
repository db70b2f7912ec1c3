//! The path of this program for files that outlive this version, and the client that started it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use svc_install::client::program_in;
use svc_sys::config::Env;
use svc_sys::process_list;

/// The path by which the person runs this program: after an upgrade, a link on the PATH leads to
/// the new version, while the target of today may be gone.
pub(super) fn own_name(env: &Env) -> Result<PathBuf> {
    let running = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(lasting_name(&running, std::env::args_os().next().as_deref(), env.os("PATH")))
}

/// `svc` on the PATH, if it is the program `running`; else the `invoked` path, made absolute; else
/// `running`.
fn lasting_name(running: &Path, invoked: Option<&OsStr>, paths: Option<&OsStr>) -> PathBuf {
    let invoked = invoked.map(Path::new).and_then(|path| match path.to_str() {
        Some(name) if !name.contains('/') => program_in(paths?, name),
        _ => Some(path.to_path_buf()),
    });
    let real = std::fs::canonicalize(running).ok();
    [paths.and_then(|paths| program_in(paths, "svc")), invoked]
        .into_iter()
        .flatten()
        // The parent process chose the invoked path, so it counts only if it leads to this program.
        .filter(|path| real.is_some() && std::fs::canonicalize(path).ok() == real)
        .find_map(|path| std::path::absolute(path).ok())
        .unwrap_or_else(|| running.to_path_buf())
}

/// The client's process for a request on the socket; this process if the client's is unknown.
pub(super) fn client_or_own() -> u32 {
    client().unwrap_or_else(std::process::id)
}

/// The process that started this one, skipping a shell between them.
pub(super) fn client() -> Option<u32> {
    process_list::client_of_this().map(|process| process.pid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn own_name_prefers_a_lasting_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let program = |name: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
            std::fs::write(&path, "").expect("writes");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
            path
        };
        let running = program("opt/svc-0.1");
        let other = program("other/svc");
        let (on_path, linked) = (folder.join("bin/svc"), folder.join("links/svc"));
        for link in [&on_path, &linked] {
            std::fs::create_dir_all(link.parent().expect("a folder")).expect("makes");
            symlink(&running, link).expect("links");
        }
        let name = |invoked: &Path, paths: &str| {
            lasting_name(&running, Some(invoked.as_os_str()), Some(OsStr::new(paths)))
        };
        let bin = folder.join("bin").display().to_string();
        assert_eq!(name(Path::new("svc"), &bin), on_path);
        assert_eq!(name(&running, &bin), on_path, "also when it was invoked by its file");
        assert_eq!(name(&linked, "/nowhere"), linked, "not on the PATH: as invoked");
        let others = other.parent().expect("a folder").display().to_string();
        assert_eq!(name(&linked, &others), linked, "another svc is on the PATH");
        assert_eq!(name(&other, "/nowhere"), running, "the parent may say anything");
        assert_eq!(name(Path::new("svc"), "/nowhere"), running);
        assert_eq!(lasting_name(&running, None, None), running);
    }
}
