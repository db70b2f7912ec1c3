//! What connections ask of the agent, and how they wait for it.

use svc_model::agent::AgentInfo;
use svc_wire::host_protocol::{
    AnswerAgent, InterruptAgent, SendAnswer, SendInput, StopAgent, StopAnswer,
};
use tokio::sync::{mpsc, oneshot};

/// One command, with who waits for its answer.
#[derive(Debug)]
pub(super) enum HostCommand {
    Info(oneshot::Sender<AgentInfo>),
    Send(SendInput, oneshot::Sender<Result<SendAnswer, String>>),
    Answer(AnswerAgent, oneshot::Sender<Result<(), String>>),
    Interrupt(InterruptAgent, oneshot::Sender<Result<(), String>>),
    Stop(StopAgent, oneshot::Sender<StopAnswer>),
}

/// The way to the agent.
#[derive(Debug, Clone)]
pub(super) struct AgentCommands(mpsc::Sender<HostCommand>);

impl AgentCommands {
    /// A way, and its end.
    pub(super) fn channel() -> (Self, mpsc::Receiver<HostCommand>) {
        let (sender, receiver) = mpsc::channel(16);
        (Self(sender), receiver)
    }

    /// Asks, and waits for the answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> HostCommand,
    ) -> Result<T, String> {
        let (sender, receiver) = oneshot::channel();
        let ends = || "the host ends".to_owned();
        self.0.send(command(sender)).await.map_err(|_| ends())?;
        receiver.await.map_err(|_| ends())
    }

    /// Asks what may be refused.
    pub(super) async fn try_ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, String>>) -> HostCommand,
    ) -> Result<T, String> {
        self.ask(command).await?
    }
}
