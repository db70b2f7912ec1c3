//! The version of a client on this machine: some settings need a later one.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::client::ClientLocations;
use super::client::ClientVersion;
use super::client::KnownClient;

/// How long a client may take to print its version. Slow ones have a package file with it.
const PATIENCE: Duration = Duration::from_millis(800);
/// Folders between an executable and the file of its npm package.
const PACKAGE_DEPTH: usize = 4;

/// Adds the versions on which an installation depends.
pub async fn with_versions(mut locations: ClientLocations) -> ClientLocations {
    let version = version_of(KnownClient::ClaudeCode, &locations).await;
    locations.claude_version = version.and_then(|version| ClientVersion::parse(&version));
    locations
}

/// The version of a client on the PATH, from its package, or as it prints it in time.
pub async fn version_of(client: KnownClient, locations: &ClientLocations) -> Option<String> {
    let name = client.executable()?;
    let program = locations.find(name)?;
    match on_disk(name, &program) {
        Some(version) => Some(version),
        None => printed(&program).await,
    }
}

/// The version of a running client, from the package or file that it was started from. `words` is
/// its command line; for one that an interpreter runs, the first argument is its file.
pub fn version_of_running(
    client: KnownClient,
    executable: Option<&Path>,
    words: &[OsString],
) -> Option<ClientVersion> {
    let name = client.executable()?;
    let script = words.get(1).map(Path::new).filter(|path| path.is_absolute());
    let files = [executable, script].into_iter().flatten();
    files.filter_map(|file| on_disk(name, file)).find_map(|version| ClientVersion::parse(&version))
}

/// From the `package.json` above an executable, or from the name of the file that it links to.
fn on_disk(name: &str, program: &Path) -> Option<String> {
    let target = std::fs::canonicalize(program).ok()?;
    if let Some(file) = target.file_name().and_then(|file| file.to_str())
        && file.starts_with(|c: char| c.is_ascii_digit())
        && ClientVersion::parse(file).is_some()
    {
        return Some(file.to_owned());
    }
    let folders = target.ancestors().skip(1).take(PACKAGE_DEPTH);
    folders.into_iter().find_map(|folder| {
        let package =
            bounded_file::read(&folder.join("package.json"), CLIENT_FILE_BYTES).ok()??;
        let package: Value = serde_json::from_slice(&package).ok()?;
        package.get("bin")?.get(name)?;
        package.get("version")?.as_str().map(str::to_owned)
    })
}

async fn printed(program: &Path) -> Option<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let text = timeout(PATIENCE, output).await.ok()?.ok()?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_package() {
        let folder = tempfile::tempdir().expect("a folder");
        let package = folder.path().join("lib/claude-code");
        std::fs::create_dir_all(package.join("bin")).expect("makes");
        let program = package.join("bin/claude.exe");
        std::fs::write(&program, "").expect("writes");
        assert_eq!(on_disk("claude", &program), None);
        let write =
            |text: &str| std::fs::write(package.join("package.json"), text).expect("writes");
        write(r#"{"version":"2.1.100","bin":{"claude":"bin/claude.exe"}}"#);
        let link = folder.path().join("claude");
        std::os::unix::fs::symlink(&program, &link).expect("links");
        assert_eq!(on_disk("claude", &link).as_deref(), Some("2.1.100"));
        assert_eq!(on_disk("codex", &link), None, "another package's program");
        let running = |executable: &Path, words: &[&Path]| {
            let words: Vec<_> = words.iter().map(|word| word.as_os_str().to_owned()).collect();
            version_of_running(KnownClient::ClaudeCode, Some(executable), &words)
        };
        let (node, flag) = (folder.path().join("node"), Path::new("-p"));
        let version = Some(ClientVersion([2, 1, 100]));
        assert_eq!(running(&program, &[Path::new("claude"), flag]), version);
        assert_eq!(running(&node, &[&node, &link, flag]), version, "run by an interpreter");
        assert_eq!(running(&node, &[&node, flag]), None);
        let native = folder.path().join("2.0.60");
        std::fs::write(&native, "").expect("writes");
        assert_eq!(on_disk("claude", &native).as_deref(), Some("2.0.60"));
    }
}
