//! Where the files of this person's clients are, how clients run this program, and which clients a command means.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use svc_install::{ClientCommand, ClientLocations, KnownClient};

use crate::cli::Context;

/// The files of whoever runs this program, and of the project in the current folder.
pub(super) fn locations(context: &Context) -> anyhow::Result<ClientLocations> {
    let home = context.env.os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    Ok(ClientLocations::new(
        home.context("HOME is not set, so nobody can tell where the clients' files are")?,
        std::env::current_dir().context("cannot tell which folder this is")?,
        |name| context.env.os(name).map(OsStr::to_owned),
    ))
}

/// The program that runs now, with the data folder that it uses. It has the name by which the person runs it: a link on the
/// PATH leads to another version after an upgrade, and the file that it leads to now may be gone then.
pub(super) fn command(
    context: &Context,
    locations: &ClientLocations,
) -> anyhow::Result<ClientCommand> {
    let running = std::env::current_exe().context("cannot tell where this program is")?;
    let path = lasting_name(&running, std::env::args_os().next().as_deref(), locations);
    let default_home = context.env.os("HOME").map(|home| Path::new(home).join(".local/share/svc"));
    Ok(ClientCommand::new(&path, &context.paths.home, default_home.as_deref())?)
}

/// `svc` on the PATH, if it is the program `running`; else what it was `invoked` as, made absolute; else `running`.
fn lasting_name(running: &Path, invoked: Option<&OsStr>, locations: &ClientLocations) -> PathBuf {
    let invoked = invoked.map(Path::new).and_then(|path| match path.to_str() {
        Some(name) if !name.contains('/') => locations.find(name),
        _ => Some(path.to_path_buf()),
    });
    let real = std::fs::canonicalize(running).ok();
    [locations.find("svc"), invoked]
        .into_iter()
        .flatten()
        // What it was invoked as is only what its parent says.
        .filter(|path| real.is_some() && std::fs::canonicalize(path).ok() == real)
        .find_map(|path| std::path::absolute(path).ok())
        .unwrap_or_else(|| running.to_path_buf())
}

/// The clients that are named, or else those that `otherwise` accepts, in the order of all.
pub(super) fn chosen(
    named: &[KnownClient],
    otherwise: impl Fn(KnownClient) -> bool,
) -> Vec<KnownClient> {
    let is_chosen = |client: KnownClient| {
        if named.is_empty() { otherwise(client) } else { named.contains(&client) }
    };
    KnownClient::all().iter().copied().filter(|client| is_chosen(*client)).collect()
}

/// The clients' names, with commas between them.
pub(super) fn names(clients: &[KnownClient]) -> String {
    clients.iter().map(|client| client.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn the_name_that_lasts_is_kept() {
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
        let name = |invoked: &Path, path: &str| {
            let path = OsStr::new(path).to_owned();
            let variable = |name: &str| (name == "PATH").then(|| path.clone());
            let locations = ClientLocations::new(folder.into(), folder.into(), variable);
            lasting_name(&running, Some(invoked.as_os_str()), &locations)
        };
        let bin = folder.join("bin").display().to_string();
        assert_eq!(name(Path::new("svc"), &bin), on_path);
        assert_eq!(name(&running, &bin), on_path, "also when it was invoked by its file");
        assert_eq!(name(&linked, "/nowhere"), linked, "not on the PATH: as invoked");
        let others = other.parent().expect("a folder").display().to_string();
        assert_eq!(name(&linked, &others), linked, "another svc is on the PATH");
        assert_eq!(name(&other, "/nowhere"), running, "the parent may say anything");
        assert_eq!(name(Path::new("svc"), "/nowhere"), running);
    }
}
