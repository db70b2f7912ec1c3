//! The loop of a host: one thread serves the program, its outputs, its clients and its deadlines.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use svc_sys::lines::{Line, LineSplitter};
use svc_wire::host_protocol::{StopAgent, StopAnswer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep_until, timeout};

use super::agent::{Action, HostedAgent};
use super::connection::HostCommand;
use super::record::AgentEnd;
use crate::runner::{AgentExit, AgentPipes, AgentProcess, AgentSpool, RunExit};

/// Bytes of output that are read at once.
const BLOCK: usize = 64 * 1024;
/// Longest line of the program, in bytes; the rest of a longer one is dropped.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// How long outputs may stay open after the agent: another process may hold them.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// How long the agent may take to end after a signal to the host.
const HOST_STOP: Duration = Duration::from_secs(5);
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// The longest that a stop may ask for.
const LONGEST_STOP_PATIENCE: Duration = Duration::from_hours(1);

#[derive(Debug)]
enum InputPart {
    Bytes { bytes: Vec<u8>, after: u64 },
    End,
}

#[derive(Debug)]
pub(super) struct HostRun {
    pub(super) agent: HostedAgent,
    pub(super) process: AgentProcess,
    pub(super) pipes: AgentPipes,
    pub(super) exit: AgentExit,
    pub(super) spool: AgentSpool,
    pub(super) commands: mpsc::Receiver<HostCommand>,
    pub(super) linger: Duration,
}

/// A client that waits for a stop, and since when.
type StopWaiter = (oneshot::Sender<StopAnswer>, Instant);

impl HostRun {
    /// Runs until the agent has ended, no client has asked for a while, and the disk has the
    /// events.
    pub(super) async fn run(self) -> io::Result<()> {
        let Self { mut agent, mut process, pipes, exit, spool, mut commands, linger } = self;
        let (input, parts) = mpsc::unbounded_channel();
        tokio::spawn(feed(pipes.stdin, parts, spool.clone()));
        let mut stdout = RunOutput::new(pipes.stdout, spool.clone());
        let mut stderr = RunOutput::new(pipes.stderr, spool.clone());
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut stops: VecDeque<StopWaiter> = VecDeque::new();
        let exit = exit.wait();
        tokio::pin!(exit);
        let ended: RunExit = loop {
            perform(agent.take_actions(), &input, &mut process).await;
            let deadline = agent.deadline();
            tokio::select! {
                biased;
                Some(command) = commands.recv() => {
                    obey(&mut agent, command, &mut stops);
                }
                ended = &mut exit => break ended,
                block = stdout.next(), if stdout.is_open => stdout.take(block, &mut agent, true),
                block = stderr.next(), if stderr.is_open => stderr.take(block, &mut agent, false),
                () = until(deadline) => agent.tick(Instant::now()),
                _ = terminate.recv() => agent.stop(Some(HOST_STOP), Some("SIGTERM"), Instant::now()),
                _ = interrupt.recv() => agent.stop(Some(HOST_STOP), Some("SIGINT"), Instant::now()),
                _ = hangup.recv() => {}
            }
        };
        timeout(OUTPUT_PATIENCE, async {
            while stdout.is_open || stderr.is_open {
                tokio::select! {
                    block = stdout.next(), if stdout.is_open => stdout.take(block, &mut agent, true),
                    block = stderr.next(), if stderr.is_open => stderr.take(block, &mut agent, false),
                }
            }
        })
        .await
        .ok();
        agent.exited(ended, Instant::now());
        agent.take_actions();
        // The end is recorded before clients get the response to a stop.
        while let Some((waiter, since)) = stops.pop_front() {
            if let Some(end) = agent.end() {
                waiter.send(stop_answer(end, since.elapsed())).ok();
            }
        }
        linger_on(agent, commands, linger).await;
        timeout(Duration::from_secs(30), spool.settled()).await.ok();
        Ok(())
    }
}

/// Answers clients after the end of the agent.
async fn linger_on(
    mut agent: HostedAgent,
    mut commands: mpsc::Receiver<HostCommand>,
    linger: Duration,
) {
    // However often clients ask. With the time for the rest of the stream: 20 s at most.
    let most = Instant::now() + linger + linger / 2;
    let mut end = Instant::now() + linger;
    loop {
        tokio::select! {
            Some(command) = commands.recv() => {
                let mut stops = VecDeque::new();
                obey(&mut agent, command, &mut stops);
                end = most.min(Instant::now() + linger);
            }
            () = until(Some(end)) => return,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

async fn perform(
    actions: Vec<Action>,
    input: &mpsc::UnboundedSender<InputPart>,
    process: &mut AgentProcess,
) {
    for action in actions {
        match action {
            Action::Write { bytes, after } => {
                input.send(InputPart::Bytes { bytes, after }).ok();
            }
            Action::CloseInput => {
                input.send(InputPart::End).ok();
            }
            Action::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    process.signal(signal).await;
                }
            }
            Action::Kill => process.kill().await,
        }
    }
}

fn obey(agent: &mut HostedAgent, command: HostCommand, stops: &mut VecDeque<StopWaiter>) {
    let now = Instant::now();
    // The command is done even if its sender is gone.
    match command {
        HostCommand::Info(reply) => drop(reply.send(agent.info())),
        HostCommand::Send(send, reply) => drop(reply.send(agent.send(send, now))),
        HostCommand::Answer(answer, reply) => drop(reply.send(agent.answer(answer, now))),
        HostCommand::Interrupt(interrupt, reply) => {
            drop(reply.send(agent.interrupt(interrupt.message_id.as_deref(), now)));
        }
        HostCommand::Stop(StopAgent { force, timeout, reason }, reply) => {
            if let Some(end) = agent.end() {
                reply.send(stop_answer(end, Duration::ZERO)).ok();
                return;
            }
            let patience = u64::try_from(timeout).ok().filter(|seconds| *seconds > 0);
            let patience = patience.map_or(STOP_PATIENCE, Duration::from_secs);
            let patience = patience.min(LONGEST_STOP_PATIENCE);
            agent.stop((!force).then_some(patience), reason.as_deref(), now);
            stops.push_back((reply, now));
        }
    }
}

fn stop_answer(end: AgentEnd, took: Duration) -> StopAnswer {
    StopAnswer {
        stopped: true,
        exit_code: end.exit_code,
        signal: end.signal,
        graceful: end.graceful,
        duration: match took.as_millis() {
            millis @ 0..1000 => format!("{millis}ms"),
            millis => format!("{}.{:03}s", millis / 1000, millis % 1000),
        },
        final_state: end.state,
    }
}

#[derive(Debug)]
struct RunOutput {
    pipe: pipe::Receiver,
    spool: AgentSpool,
    lines: LineSplitter,
    block: Vec<u8>,
    is_open: bool,
}

impl RunOutput {
    fn new(pipe: pipe::Receiver, spool: AgentSpool) -> Self {
        Self {
            pipe,
            spool,
            lines: LineSplitter::dropping_excess(MAX_LINE),
            block: vec![0; BLOCK],
            is_open: true,
        }
    }

    /// Reads the next bytes, once little enough waits for the disk.
    async fn next(&mut self) -> usize {
        self.spool.room().await;
        self.pipe.read(&mut self.block).await.unwrap_or(0)
    }

    fn take(&mut self, size: usize, agent: &mut HostedAgent, is_stdout: bool) {
        let now = Instant::now();
        let line = |line: Line<'_>| {
            if is_stdout {
                agent.output(line, now);
            } else {
                agent.stderr(line);
            }
        };
        if size == 0 {
            self.is_open = false;
            self.lines.finish(line);
        } else {
            self.lines.push(&self.block[..size], line);
        }
    }
}

/// Writes to the agent's standard input, each part once the disk has the event of it.
async fn feed(
    mut stdin: pipe::Sender,
    mut parts: mpsc::UnboundedReceiver<InputPart>,
    spool: AgentSpool,
) {
    let mut committed: watch::Receiver<_> = spool.committed();
    while let Some(InputPart::Bytes { bytes, after }) = parts.recv().await {
        if committed.wait_for(|end| end.offset >= after).await.is_err() {
            return;
        }
        // That the agent takes no more input shows elsewhere.
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
