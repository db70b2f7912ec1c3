//! The folder of a run and the processes that it starts. The end of the run removes both.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::report;

/// The folder, which is removed on drop, and the processes that still run.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Removed with the last sandbox in this folder.
    root: Arc<TempDir>,
    /// The sandbox's folder: the root, or a folder below it.
    folder: PathBuf,
    svc: PathBuf,
    running: Running,
}

type Running = Arc<Mutex<Vec<Pid>>>;

impl Sandbox {
    pub(crate) fn new(svc: PathBuf) -> anyhow::Result<Self> {
        let root = Arc::new(tempfile::Builder::new().prefix("svc-bench-").tempdir()?);
        let folder = root.path().to_owned();
        let sandbox = Self { root, folder, svc, running: Running::default() };
        sandbox.listen_to_signals()?;
        Ok(sandbox)
    }

    /// A folder beside this one in which another program is measured. Both are removed together.
    pub(crate) fn sibling(&self, svc: PathBuf, name: &str) -> anyhow::Result<Self> {
        let folder = self.root.path().join(name);
        fs::create_dir(&folder)?;
        Ok(Self { root: Arc::clone(&self.root), folder, svc, running: Arc::clone(&self.running) })
    }

    /// Removes the content of the folder, except `kept`.
    pub(crate) fn clear(&self, kept: Option<&str>) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if kept.is_some_and(|kept| entry.file_name() == *kept) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    pub(crate) fn svc(&self) -> &Path {
        &self.svc
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Lets other users traverse the folder without listing it, as a server that runs as another
    /// user has its data below it.
    pub(crate) fn let_pass(&self) -> anyhow::Result<()> {
        let own = |folder: &&Path| folder.starts_with(self.root.path());
        for folder in self.folder.ancestors().take_while(own) {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        }
        Ok(())
    }

    /// Starts a process that ends with its owner at the latest. Its standard error goes to a file,
    /// which [`Process::complaint`] reads.
    pub(crate) fn start(&self, name: &str, command: &mut Command) -> anyhow::Result<Process> {
        self.launch(name, command.stdin(Stdio::null()).stdout(Stdio::piped()))
    }

    /// As `start`, but keeps the standard input and output that the command has.
    pub(crate) fn launch(&self, name: &str, command: &mut Command) -> anyhow::Result<Process> {
        let stderr = self.path(&format!("{name}.stderr"));
        let child = command
            .stderr(fs::File::create(&stderr)?)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let pid = pid_of(&child);
        lock(&self.running).extend(pid);
        Ok(Process { child, stderr, running: Arc::clone(&self.running) })
    }

    /// Handles signals, which would otherwise leave the folder and the processes behind.
    fn listen_to_signals(&self) -> anyhow::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (folder, running) = (self.root.path().to_owned(), Arc::clone(&self.running));
        let (mut interrupt, mut terminate) = {
            let _guard = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            });
            for pid in lock(&running).drain(..) {
                kill_process(pid, Signal::KILL).ok();
            }
            fs::remove_dir_all(folder).ok();
            std::process::exit(130);
        });
        Ok(())
    }
}

/// A child process. Killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stderr: PathBuf,
    running: Running,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process's standard input and output, if they are pipes. May be called once.
    pub(crate) fn pipes(&mut self) -> anyhow::Result<(ChildStdin, ChildStdout)> {
        let pipes = self.child.stdin.take().zip(self.child.stdout.take());
        pipes.context("it has no pipes, or they were taken before")
    }

    /// The next line of standard output. May be called once, as it takes the output.
    pub(crate) fn first_line(&mut self) -> anyhow::Result<String> {
        let stdout = self.child.stdout.take().context("its output was taken before")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "it did not start: {}", self.complaint());
        Ok(line)
    }

    pub(crate) fn complaint(&self) -> String {
        let text = fs::read_to_string(&self.stderr).unwrap_or_default();
        text.chars().take(2000).collect::<String>().trim().to_owned()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = pid_of(&self.child) {
            kill_process(pid, Signal::TERM)?;
        }
        let end = Instant::now() + Duration::from_secs(30);
        while self.is_running() {
            anyhow::ensure!(Instant::now() < end, "it does not end: {}", self.complaint());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// CPU time so far, if the system reports it.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        Some(cpu_times(self.id())?.0)
    }

    pub(crate) fn cpu_since(&self, before: Option<Duration>) -> Option<Duration> {
        Some(self.cpu()?.saturating_sub(before?))
    }

    /// The number of threads, if the system reports it.
    pub(crate) fn threads(&self) -> Option<u64> {
        self.status("Threads:")?.parse().ok()
    }

    /// The value with this name in `/proc/<pid>/status`.
    fn status(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    }

    /// Resets the peak of resident memory, if the system allows it.
    pub(crate) fn reset_peak(&self) {
        // Without the reset, the peak is the one since the start.
        fs::write(format!("/proc/{}/clear_refs", self.id()), "5").ok();
    }

    /// The peak of resident memory in bytes; the current value if the system reports no peak.
    pub(crate) fn peak_bytes(&self) -> anyhow::Result<u64> {
        let kib = self.status("VmHWM:");
        let kib = kib.and_then(|value| value.trim_end_matches("kB").trim().parse::<u64>().ok());
        kib.map_or_else(|| self.resident_bytes(), |kib| Ok(kib * 1024))
    }

    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let kib: Option<u64> = if let Some(value) = self.status("VmRSS:") {
            value.trim_end_matches("kB").trim().parse().ok()
        } else {
            let id = self.id().to_string();
            let output = Command::new("ps").args(["-o", "rss=", "-p", &id]).output()?;
            String::from_utf8_lossy(&output.stdout).trim().parse().ok()
        };
        Ok(kib.context("the system does not tell how much memory a process has")? * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        let pid = pid_of(&self.child);
        lock(&self.running).retain(|running| Some(*running) != pid);
    }
}

/// CPU time of a process so far, and of its children that have ended, if the system reports it.
pub(crate) fn cpu_times(pid: u32) -> Option<(Duration, Duration)> {
    // In clock ticks, which are hundredths of a second on every Linux.
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (own, children) = (next()? + next()?, next()? + next()?);
    Some((Duration::from_millis(own * 10), Duration::from_millis(children * 10)))
}

/// A port that was free at the time of the call.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// The disk of the databases. Many disks have two speeds: for a while after others have written
/// much, a virtual disk takes forty times as long, which would falsify the figures.
#[derive(Debug)]
pub(crate) struct Disk {
    best: f64,
    seen: Vec<f64>,
    /// Remaining time that this run may wait for the disk.
    max_wait: Duration,
}

impl Disk {
    pub(crate) fn look(sandbox: &Sandbox) -> anyhow::Result<Self> {
        let best = fsync_micros(sandbox)?;
        Ok(Self { best, seen: vec![best], max_wait: Duration::from_mins(2) })
    }

    /// Waits until the disk is about as fast as it ever was, or until `max_wait` is used up.
    pub(crate) fn settle(&mut self, sandbox: &Sandbox) -> anyhow::Result<()> {
        const PAUSE: Duration = Duration::from_millis(250);
        loop {
            let micros = fsync_micros(sandbox)?;
            self.best = self.best.min(micros);
            if micros <= self.best.max(50.0) * 3.0 || self.max_wait.is_zero() {
                self.seen.push(micros);
                return Ok(());
            }
            self.max_wait = self.max_wait.saturating_sub(PAUSE);
            std::thread::sleep(PAUSE);
        }
    }

    /// Median duration of one `fsync` of a small write over the rounds, in microseconds.
    pub(crate) fn median(&self) -> f64 {
        report::median(self.seen.clone())
    }
}

fn fsync_micros(sandbox: &Sandbox) -> anyhow::Result<f64> {
    use std::io::Write as _;
    let path = sandbox.path("fsync");
    let mut file = fs::File::create(&path)?;
    let mut times = Vec::new();
    for _ in 0..25 {
        let begun = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    fs::remove_file(path)?;
    Ok(report::median(times))
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn lock(running: &Running) -> MutexGuard<'_, Vec<Pid>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
