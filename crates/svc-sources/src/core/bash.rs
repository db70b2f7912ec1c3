//! `Bash`, `BashOutput` and `BashKill`.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, Mutex},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::{
    service::{Services, sources::SourceKey},
    tools::{ErrorType, ToolError},
};
use svc_model::new_secret;
use svc_sys::server_process::{ServerCommand, ServerPipes, ServerProcess};
use tokio::{io::AsyncReadExt as _, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{field_error, lock, log_unstored};

/// Most output that is kept of a command, in bytes: half from its beginning, half from its end.
const MAX_OUTPUT: usize = 1024 * 1024;
/// Most background commands of one caller.
const MAX_BACKGROUND: usize = 32;

/// A command of the shell.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BashArguments {
    /// What the shell is to run.
    #[schemars(length(min = 1, max = 100_000))]
    pub(super) command: String,
    /// The folder to run it in, if not the session's.
    #[schemars(length(max = 4096))]
    pub(super) cwd: Option<String>,
    /// It is killed after so many milliseconds. In the background it has no bound.
    #[serde(default = "two_minutes")]
    #[schemars(range(min = 1, max = 3_600_000))]
    timeout_ms: u64,
    /// Return a `task_id` at once; `BashOutput` reads on, `BashKill` ends it.
    pub(super) background: Option<bool>,
}

fn two_minutes() -> u64 {
    120_000
}

/// The result of a command.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct BashResult {
    /// What it wrote, to standard output and error output.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    /// The middle of the output is left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Of a command in the background.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<String>,
}

/// Which command in the background.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BashOutputArguments {
    #[schemars(length(max = 64))]
    task_id: String,
    /// The `next_after` of the last answer: only what follows it.
    after: Option<u64>,
}

/// What a command in the background has written.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BashOutputResult {
    output: String,
    next_after: u64,
    /// running, exited or killed.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Output before this was left out: it is more than is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Which command to end.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BashKillArguments {
    #[schemars(length(max = 64))]
    task_id: String,
}

/// A command that was ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BashKillResult {
    task_id: String,
    status: &'static str,
}

#[derive(Debug)]
pub(super) struct Shell {
    services: Services,
    background: Mutex<HashMap<String, BackgroundCommand>>,
    stop: CancellationToken,
    running: TaskTracker,
}

#[derive(Debug)]
struct BackgroundCommand {
    owner: String,
    /// The command is killed when this session ends.
    session: Option<String>,
    /// Number of the next command, in the order of their starts.
    number: u64,
    output: Arc<Mutex<CommandOutput>>,
    end: watch::Receiver<Option<CommandEnd>>,
    kill: CancellationToken,
}

#[derive(Debug, Clone, Copy)]
struct CommandEnd {
    status: Option<ExitStatus>,
    is_killed: bool,
}

#[derive(Debug, Default)]
struct CommandOutput {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

#[derive(Debug)]
pub(super) struct ShellCommand {
    pub(super) command: String,
    pub(super) cwd: PathBuf,
    pub(super) env: Vec<(String, String)>,
}

impl CommandOutput {
    fn add(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(MAX_OUTPUT / 2 - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let excess = self.tail.len().saturating_sub(MAX_OUTPUT / 2);
        self.tail.drain(..excess);
    }

    fn left_out(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    fn text(&self) -> String {
        let mut bytes = self.head.clone();
        let left_out = self.left_out();
        if left_out > 0 {
            bytes.extend(format!("\n… {left_out} bytes left out …\n").bytes());
        }
        bytes.extend(&self.tail);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The output after a position, and whether a part of it was dropped.
    fn after(&self, position: u64) -> (Vec<u8>, bool) {
        let head_end = self.head.len() as u64;
        let tail_start = self.total - self.tail.len() as u64;
        let at = |from: u64| usize::try_from(from).unwrap_or(usize::MAX);
        let mut bytes = self.head.get(at(position)..).unwrap_or_default().to_vec();
        bytes.extend(self.tail.iter().skip(at(position.saturating_sub(tail_start))));
        (bytes, position < tail_start && tail_start > head_end.max(position))
    }
}

impl Shell {
    pub(super) fn new(services: Services) -> Self {
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        Self { services, background: Mutex::default(), stop, running }
    }

    /// Kills all commands, and waits until no process of them is left.
    pub(super) async fn finish(&self) {
        self.stop.cancel();
        self.running.close();
        self.running.wait().await;
    }

    /// Runs a command to its end. Dropping the future kills it.
    pub(super) async fn run(
        &self,
        command: ShellCommand,
        input: &BashArguments,
    ) -> Result<BashResult, ToolError> {
        let kill = self.stop.child_token();
        let _dropped = kill.clone().drop_guard();
        let output = Arc::new(Mutex::new(CommandOutput::default()));
        let mut end = self.start(command, Arc::clone(&output), kill.clone()).await?;
        let timeout = Duration::from_millis(input.timeout_ms);
        let in_time = tokio::time::timeout(timeout, end.wait_for(Option::is_some)).await.is_ok();
        if !in_time {
            kill.cancel();
            end.wait_for(Option::is_some).await.ok();
        }
        let ended = *end.borrow();
        let output = lock(&output);
        let status = ended.and_then(|end| end.status);
        Ok(BashResult {
            output: Some(output.text()),
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            timed_out: !in_time,
            truncated: output.left_out() > 0,
            task_id: None,
        })
    }

    /// Starts a command that runs until it ends, is killed, or its session or the daemon ends.
    pub(super) async fn run_in_background(
        &self,
        owner: String,
        session: Option<String>,
        command: ShellCommand,
    ) -> Result<BashResult, ToolError> {
        self.evict(&owner)?;
        let kill = self.stop.child_token();
        let output = Arc::new(Mutex::new(CommandOutput::default()));
        let end = self.start(command, Arc::clone(&output), kill.clone()).await?;
        let task_id = format!("bash_{}", new_secret().split_at(24).0);
        let mut background = lock(&self.background);
        let number = background.values().map(|command| command.number + 1).max().unwrap_or(0);
        let command = BackgroundCommand { owner, session, number, output, end, kill };
        background.insert(task_id.clone(), command);
        Ok(BashResult { task_id: Some(task_id), ..BashResult::default() })
    }

    /// The sessions that have background commands.
    pub(super) fn sessions(&self) -> HashSet<String> {
        let background = lock(&self.background);
        let running = background.values().filter(|command| command.end.borrow().is_none());
        running.filter_map(|command| command.session.clone()).collect()
    }

    /// Kills the background commands of a session that has ended.
    pub(super) fn end_session(&self, session: &str) {
        let background = lock(&self.background);
        let own = background.values().filter(|own| own.session.as_deref() == Some(session));
        own.for_each(|command| command.kill.cancel());
    }

    /// Removes the oldest ended command, if the caller has too many.
    fn evict(&self, owner: &str) -> Result<(), ToolError> {
        let mut background = lock(&self.background);
        let own = background.iter().filter(|(_, command)| command.owner == owner);
        if own.clone().count() < MAX_BACKGROUND {
            return Ok(());
        }
        let ended = own.filter(|(_, command)| command.end.borrow().is_some());
        let oldest = ended.min_by_key(|(_, command)| command.number).map(|(id, _)| id.clone());
        let oldest = oldest.ok_or_else(|| {
            let text =
                format!("{MAX_BACKGROUND} commands run in the background: end one with BashKill");
            ToolError::new(ErrorType::Unavailable, text)
        })?;
        background.remove(&oldest);
        Ok(())
    }

    async fn start(
        &self,
        command: ShellCommand,
        output: Arc<Mutex<CommandOutput>>,
        kill: CancellationToken,
    ) -> Result<watch::Receiver<Option<CommandEnd>>, ToolError> {
        let ShellCommand { command, cwd, env } = command;
        let mark = new_secret().split_at(32).0.to_owned();
        // On one line, so that the line numbers in errors are those of the command.
        let command = format!("exec 2>&1 </dev/null; {command}");
        let command = |program: &str| ServerCommand {
            program: program.to_owned(),
            args: vec!["-c".to_owned(), command.clone()],
            env: env.clone(),
            cwd: cwd.clone(),
            mark: mark.clone(),
        };
        let failed = |problem: String| ToolError::new(ErrorType::Unavailable, problem);
        let (process, pipes) = match ServerProcess::start(command("bash")).await {
            Ok(started) => started,
            // Not every system has `bash`.
            Err(_) => ServerProcess::start(command("/bin/sh")).await.map_err(failed)?,
        };
        let key =
            SourceKey { name: svc_model::source::BUILTIN_CORE.to_owned(), project: String::new() };
        let identity = process.identity().clone();
        let sources = &self.services.sources;
        if let Err(error) = sources.note_process(key, String::new(), mark, identity).await {
            process.kill().await;
            return Err(error.into());
        }
        let (ended, end) = watch::channel(None);
        let services = self.services.clone();
        self.running.spawn(async move {
            let end = follow(process, pipes, output, kill, &services).await;
            ended.send_replace(Some(end));
        });
        Ok(end)
    }

    fn find<T>(
        &self,
        owner: &str,
        task_id: &str,
        then: impl FnOnce(&BackgroundCommand) -> T,
    ) -> Result<T, ToolError> {
        let background = lock(&self.background);
        let found = background.get(task_id).filter(|command| command.owner == owner);
        found.map(then).ok_or_else(|| {
            let text = "task_id: there is no such command of yours";
            field_error(ErrorType::NotFound, "task_id", text)
        })
    }

    pub(super) fn output(
        &self,
        owner: &str,
        input: &BashOutputArguments,
    ) -> Result<BashOutputResult, ToolError> {
        self.find(owner, &input.task_id, |command| {
            // The end is read first, so that the output read after it is complete.
            let end = *command.end.borrow();
            let output = lock(&command.output);
            let position = input.after.unwrap_or(0).min(output.total);
            let (mut bytes, truncated) = output.after(position);
            let mut next_after = output.total;
            if end.is_none() {
                // An incomplete character is left for the next response.
                let cut = whole_characters(&bytes);
                next_after -= (bytes.len() - cut) as u64;
                bytes.truncate(cut);
            }
            let status = match end {
                None => "running",
                Some(CommandEnd { is_killed: true, .. }) => "killed",
                Some(_) => "exited",
            };
            let exit_code = end.and_then(|end| end.status).and_then(|status| status.code());
            let output = String::from_utf8_lossy(&bytes).into_owned();
            BashOutputResult { output, next_after, status, exit_code, truncated }
        })
    }

    /// Kills a background command, and waits until no process of it is left.
    pub(super) async fn kill(
        &self,
        owner: &str,
        input: BashKillArguments,
    ) -> Result<BashKillResult, ToolError> {
        let mut end = self.find(owner, &input.task_id, |command| {
            command.kill.cancel();
            command.end.clone()
        })?;
        end.wait_for(Option::is_some).await.ok();
        let is_killed = end.borrow().is_some_and(|end| end.is_killed);
        let status = if is_killed { "killed" } else { "exited" };
        Ok(BashKillResult { task_id: input.task_id, status })
    }
}

/// Length of the text without an incomplete character at its end.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// Reads a command's output until it ends, and kills its remaining processes.
async fn follow(
    mut process: ServerProcess,
    pipes: ServerPipes,
    output: Arc<Mutex<CommandOutput>>,
    kill: CancellationToken,
    services: &Services,
) -> CommandEnd {
    let ServerPipes { stdin, mut stdout, mut stderr } = pipes;
    drop(stdin);
    let mark = process.mark().to_owned();
    let (for_errors, mut errors) = (Arc::clone(&output), vec![0; 4096]);
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        let (mut is_open, mut has_errors) = (true, true);
        while is_open || has_errors {
            tokio::select! {
                read = stdout.read(&mut buffer), if is_open => match read {
                    Ok(read @ 1..) => lock(&output).add(&buffer[..read]),
                    Ok(0) | Err(_) => is_open = false,
                },
                // Errors that the shell prints before it reads its first line.
                read = stderr.read(&mut errors), if has_errors => match read {
                    Ok(read @ 1..) => lock(&for_errors).add(&errors[..read]),
                    Ok(0) | Err(_) => has_errors = false,
                },
            }
        }
    });
    let (status, is_killed) = tokio::select! {
        biased;
        status = process.wait() => (status, false),
        () = kill.cancelled() => (None, true),
    };
    // Kills the command's remaining processes, too.
    let status = process.kill().await.or(status);
    let forgotten = services.sources.forget_process(mark).await;
    log_unstored(forgotten, "cannot remove the record of a process");
    reading.await.ok();
    CommandEnd { status, is_killed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_keeps_its_beginning_and_end() {
        let mut output = CommandOutput::default();
        output.add(b"begin");
        for _ in 0..64 {
            output.add(&vec![b'x'; 65_536]);
        }
        output.add(b"end");
        let text = output.text();
        assert!(text.starts_with("beginx") && text.ends_with("xend"), "{}", text.len());
        assert!(text.len() < MAX_OUTPUT + 100 && text.contains("bytes left out"));
        assert_eq!(output.left_out() + MAX_OUTPUT as u64, output.total);
        let (rest, truncated) = output.after(output.total - 3);
        assert_eq!((rest.as_slice(), truncated), (&b"end"[..], false));
        let (_, truncated) = output.after(0);
        assert!(truncated);
    }

    #[test]
    fn positions_continue_and_partial_characters_are_held_back() {
        let mut output = CommandOutput::default();
        output.add(b"one\n");
        assert_eq!(output.after(0), (b"one\n".to_vec(), false));
        assert_eq!(output.after(4), (Vec::new(), false));
        output.add("zwölf".as_bytes());
        assert_eq!(output.after(4).0, "zwölf".as_bytes());
        assert_eq!(whole_characters("zwölf".as_bytes()), 6);
        assert_eq!(whole_characters(&"zwö".as_bytes()[..3]), 2);
        assert_eq!(whole_characters(b"\xffx"), 2);
    }
}
