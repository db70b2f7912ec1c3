//! PostgreSQL servers for tests: one for each test process, on a socket in a temporary folder, with
//! a database for each test.

#![expect(clippy::expect_used, reason = "for tests alone")]

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

/// The address of a new, empty database of this process's server.
///
/// # Panics
/// If Debian's package `postgresql` is not installed, or the server does not start.
pub fn new_database() -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut create = Command::new(SERVER.programs.join("createdb"));
    create.args(["--username=svc", "--template=template0", "--host"]).arg(&SERVER.folder);
    let done = create.arg(&name).output().expect("createdb runs");
    assert!(done.status.success(), "createdb: {}", String::from_utf8_lossy(&done.stderr));
    format!("postgres://svc@localhost/{name}?host={}", SERVER.folder.display())
}

pub fn is_installed() -> bool {
    installed().is_some()
}

/// A server for one test, which can stop and start it.
#[derive(Debug)]
pub struct OwnServer(Server);

impl OwnServer {
    /// # Panics
    /// As [`new_database`].
    pub fn start() -> Self {
        Self(Server::start())
    }

    /// The address of its only database.
    pub fn url(&self) -> String {
        format!("postgres://svc@localhost/postgres?host={}", self.0.folder.display())
    }

    /// Stops the server without a shutdown checkpoint, as a crash does.
    pub fn stop_at_once(&self) {
        self.control(&["--mode=immediate", "stop"]);
    }

    pub fn start_again(&self) {
        let options = self.0.options();
        self.control(&["--log=log", &format!("--options={options}"), "start"]);
    }

    /// Like [`Self::start_again`], but the server then accepts only reads.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start_as_standby(&self) {
        let signal = self.0.folder.join("data/standby.signal");
        std::fs::write(signal, "").expect("its folder takes a file");
        self.start_again();
    }

    fn control(&self, arguments: &[&str]) {
        let mut shell = unprivileged();
        // The server would keep the test's own output open.
        let quiet = r#"exec "$@" </dev/null >/dev/null 2>&1"#;
        shell.args(["-c", quiet, "sh"]).arg(self.0.programs.join("pg_ctl"));
        shell.args(["--pgdata=data", "--wait", "--silent"]).args(arguments);
        let status = shell.current_dir(&self.0.folder).status().expect("pg_ctl runs");
        assert!(status.success(), "pg_ctl {arguments:?}: {status}");
    }
}

/// The folder of the server's programs, such as `pg_dump`.
pub fn programs() -> &'static Path {
    &SERVER.programs
}

#[derive(Debug)]
struct Server {
    programs: PathBuf,
    /// Contains the socket and the data.
    folder: PathBuf,
    /// The shell that started the server stops it when this end of the pipe closes, at the latest
    /// when this process ends.
    _lives: ChildStdin,
}

/// `$1` is the folder of the programs, `$2` are options of the server. The files are in `/dev/shm`
/// if it exists: commits sync as in production, but fast.
const SHELL: &str = r#"
set -eu
trap '' INT
bin=$1
[ -w /dev/shm ] && TMPDIR=/dev/shm
folder=$(mktemp -d "${TMPDIR:-/tmp}/svc-pg.XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$bin/initdb" --no-sync --auth=trust --username=svc --encoding=UTF8 --locale=C --pgdata=data >log 2>&1 ||
    { cat log >&2; exit 1; }
"$bin/pg_ctl" --pgdata=data --log=log --wait --silent \
    --options="-k '$folder' $2" start </dev/null >/dev/null ||
    { cat log >&2; exit 1; }
echo "$folder"
exec >/dev/null 2>&1
cat || true
"$bin/pg_ctl" --pgdata=data --mode=immediate --silent stop || true
"#;

const OPTIONS: &str = "-c listen_addresses='' -c max_connections=200";

impl Server {
    fn options(&self) -> String {
        format!("-k '{}' {OPTIONS}", self.folder.display())
    }

    fn start() -> Self {
        let programs = installed().expect(
            "PostgreSQL 14 or later is installed for these tests: apt-get install postgresql",
        );
        let mut shell = unprivileged();
        shell.args(["-c", SHELL, "sh"]).arg(&programs).arg(OPTIONS).current_dir("/");
        // A group of its own: a Ctrl-C at the terminal ends this process and not the shell, which
        // then stops the server.
        shell.process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell starts");
        let lives = shell.stdin.take().expect("it has an input");
        let folder = Self::folder_of(&mut shell);
        Self { programs, folder, _lives: lives }
    }

    fn folder_of(shell: &mut Child) -> PathBuf {
        let mut line = String::new();
        let output = shell.stdout.take().expect("it has an output");
        BufReader::new(output).read_line(&mut line).expect("the shell's output is read");
        if line.is_empty() {
            let mut why = String::new();
            let errors = shell.stderr.take().expect("it has an error output");
            let read = BufReader::new(errors).read_to_string(&mut why);
            write!(why, " {read:?}").expect("a text takes more");
            panic!("PostgreSQL does not start: {why}");
        }
        PathBuf::from(line.trim_end())
    }
}

/// Where Debian and others install the programs, the latest version first.
fn installed() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    versions.sort_unstable();
    let debian = versions.into_iter().rev().map(|(_, path)| path.join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all: Vec<PathBuf> = debian.chain(std::env::split_paths(&path)).collect();
    all.into_iter().find(|folder| folder.join("initdb").exists())
}

/// A shell that does not run as root, because PostgreSQL refuses to.
fn unprivileged() -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new("sh");
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user =
        if users.lines().any(|line| line.starts_with("postgres:")) { "postgres" } else { "nobody" };
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid", user, "--regid"]);
    let group = if user == "nobody" { "nogroup" } else { user };
    shell.args([group, "--clear-groups", "sh"]);
    shell
}
