//! Containers of servers: when a runtime's client is killed its container goes on, so each
//! container writes its id to a file, by which it is stopped.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use svc_sys::private_file;

/// Deadline for a runtime to stop a container.
const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds between SIGTERM and SIGKILL in a container.
const GRACE: &str = "5";
/// Variables that select the runtime's daemon. No other variable of the server is kept.
const OF_RUNTIME: [&str; 8] = [
    "PATH",
    "HOME",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "CONTAINER_HOST",
];

/// The folder of the files with containers' ids. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Containers(Arc<Path>);

/// How to reach a container after its client has ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ContainerNote {
    program: String,
    env: Vec<(String, String)>,
    cidfile: PathBuf,
}

impl Containers {
    pub(super) fn new(home: &Path) -> Self {
        Self(home.join("containers").into())
    }

    fn note_file(&self, mark: &str) -> PathBuf {
        self.0.join(format!("{mark}.json"))
    }

    /// The arguments of a program, with a file for the container's id if the program starts a
    /// container.
    pub(super) fn prepare(
        &self,
        program: &str,
        mut args: Vec<String>,
        env: &[(String, String)],
        mark: &str,
    ) -> io::Result<Vec<String>> {
        let Some(at) = run_command(program, &args) else { return Ok(args) };
        private_file::create_folder(&self.0)?;
        let cidfile = if let Some(own) = own_cidfile(&args[at..]) {
            own
        } else {
            let cidfile = self.0.join(format!("{mark}.cid"));
            let option = ["--cidfile".to_owned(), cidfile.display().to_string()];
            args.splice(at..at, option);
            cidfile
        };
        let env = env.iter().filter(|(name, _)| OF_RUNTIME.contains(&name.as_str())).cloned();
        let note = ContainerNote { program: program.to_owned(), env: env.collect(), cidfile };
        let text = serde_json::to_vec(&note).map_err(io::Error::other)?;
        private_file::create_new(&self.note_file(mark), &text)?;
        Ok(args)
    }

    /// Stops the container of a process that has ended, if there is one.
    pub(super) async fn end(&self, mark: &str) {
        let file = self.note_file(mark);
        let Ok(text) = fs::read(&file) else { return };
        if let Ok(note) = serde_json::from_slice::<ContainerNote>(&text) {
            let id = fs::read_to_string(&note.cidfile).unwrap_or_default();
            if is_id(id.trim()) {
                note.run(&["stop", "-t", GRACE, id.trim()]).await;
                note.run(&["rm", "-f", id.trim()]).await;
            }
            fs::remove_file(&note.cidfile).ok();
        }
        fs::remove_file(file).ok();
    }
}

impl ContainerNote {
    /// Ignores failures: the container may be gone already, which the runtime reports as an error.
    async fn run(&self, args: &[&str]) {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(args).env_clear().envs(self.env.iter().cloned()).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match tokio::time::timeout(PATIENCE, command.status()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a container cannot be stopped"),
            Err(_) => tracing::warn!("a container is not stopped in time"),
        }
    }
}

/// The index at which the options of `docker run` begin; `None` for every other program.
fn run_command(program: &str, args: &[String]) -> Option<usize> {
    let name = Path::new(program).file_name()?.to_str()?;
    if !matches!(name, "docker" | "podman") {
        return None;
    }
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["run", ..] => Some(1),
        ["container", "run", ..] => Some(2),
        _ => None,
    }
}

fn own_cidfile(args: &[String]) -> Option<PathBuf> {
    let at = args.iter().position(|arg| arg == "--cidfile" || arg.starts_with("--cidfile="))?;
    let path = args[at].strip_prefix("--cidfile=").or_else(|| args.get(at + 1).map(String::as_str));
    path.map(PathBuf::from)
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_container_runs_get_an_id_file() {
        let home = tempfile::tempdir().expect("a folder");
        let containers = Containers::new(home.path());
        let env = [("PATH".to_owned(), "/bin".to_owned()), ("TOKEN".to_owned(), "hush".to_owned())];
        for (mark, program, args, expected) in [
            ("a", "docker", "run -i --rm x", "run --cidfile HERE/a.cid -i --rm x"),
            ("b", "/usr/bin/podman", "container run x", "container run --cidfile HERE/b.cid x"),
            ("c", "docker", "run --cidfile=/own x", "run --cidfile=/own x"),
            ("d", "docker", "compose run x", "compose run x"),
            ("e", "npx", "run x", "run x"),
        ] {
            let args = args.split(' ').map(str::to_owned).collect();
            let args = containers.prepare(program, args, &env, mark).expect("is written");
            let here = home.path().join("containers").display().to_string();
            assert_eq!(args.join(" ").replace(&here, "HERE"), expected);
            let note = fs::read_to_string(containers.note_file(mark)).unwrap_or_default();
            assert_eq!(!note.is_empty(), matches!(mark, "a" | "b" | "c"), "{mark}");
            assert!(!note.contains("hush"), "{note}");
        }
        assert!(!is_id("-a b") && !is_id("") && is_id("0123abc"));
    }
}
