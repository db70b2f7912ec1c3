//! Clients' own ways to their sessions: the plugin of opencode, the inbox of Claude Code and the
//! app-server of Codex. Nothing here writes to the store.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use svc_model::{
    HandoverId, HandoverWay, MessageId, PeerId, Principal, ProcessIdentity, hook::HookClient,
    quote::ModelText,
};
use svc_reach::codex::MessagePlace;
use svc_sys::{
    client_records::{
        ClaudeSession,
        claude::{self as claude_transcript, Shown},
    },
    local_socket,
};
use tokio::{io::AsyncWriteExt as _, task::spawn_blocking, time::timeout};

use super::plugin::{PluginConnections, PluginReport, PluginWord};
use crate::service::codex::AppServerConnections;

/// A session in a client's process.
#[derive(Clone)]
pub(super) struct NativeSession {
    pub(super) peer: PeerId,
    pub(super) backend: String,
    /// The client's own id of the session.
    pub(super) session_id: String,
    /// The process that its hooks or `svc stdio` came from.
    pub(super) process: ProcessIdentity,
    pub(super) owner: Option<Principal>,
}

pub(super) struct NativeText {
    /// Unique. Ways that let the sender choose the id of a text pass this id on.
    pub(super) id: HandoverId,
    pub(super) text: ModelText,
    /// Whether the text is for the turn under way.
    pub(super) joins_turn: bool,
}

/// Messages to look for in a client's record.
#[derive(Clone)]
pub(super) struct NativeQuestion {
    pub(super) id: HandoverId,
    /// Each message with the words of its stamp that name it and no other message.
    pub(super) marks: Vec<(MessageId, String)>,
    /// The result of [`NativeWays::record`] before the text was handed over.
    pub(super) record: Option<String>,
}

/// What a client's own record shows about messages. It shows nothing about messages that are not
/// listed.
pub(super) type ShownMessages = Shown<MessageId>;

/// The way to the sessions of a client.
pub(super) const fn way_of(client: HookClient) -> Option<HandoverWay> {
    match client {
        HookClient::Opencode => Some(HandoverWay::Plugin),
        HookClient::ClaudeCode => Some(HandoverWay::Inbox),
        HookClient::Codex => Some(HandoverWay::AppServer),
        HookClient::Gemini => None,
    }
}

/// The clients' own ways.
///
/// Claude Code's inbox is a socket of each session, which takes lines of JSON and answers nothing.
/// A text that comes while the session is idle begins a turn; the client's own record of the
/// conversation shows what it queued and what was read.
///
/// Codex' app-server has a queue that takes a text for a thread, and begins a turn with it as soon
/// as the thread is idle. The turn under way takes a text, too, which its model reads after the
/// next tool. After a person has interrupted a turn, the queue waits for the person's next prompt.
/// The app-server's own record shows what waits there and what was read.
#[derive(Debug, Clone)]
pub(super) struct NativeWays {
    pub(super) plugins: Arc<PluginConnections>,
    pub(super) app_servers: Arc<AppServerConnections>,
}

impl NativeWays {
    /// Whether a text can be handed to this session now.
    pub(super) async fn is_open(&self, way: HandoverWay, session: &NativeSession) -> bool {
        match way {
            HandoverWay::Plugin => self.plugins.is_held(session.owner.as_ref()),
            HandoverWay::Inbox => inbox_of(session).await.is_some(),
            HandoverWay::AppServer => {
                self.app_servers.is_open(&session.process, &session.session_id)
            }
        }
    }

    /// The place of this session's record, if the record can be read without the client.
    pub(super) async fn record(way: HandoverWay, session: &NativeSession) -> Option<String> {
        let HandoverWay::Inbox = way else { return None };
        let (process, id) = (session.process.clone(), session.session_id.clone());
        spawn_blocking(move || claude_transcript::end_of(&process, &id)).await.ok()?
    }

    /// Hands a text over. The caller has committed the row of the hand-over. Returns false if the
    /// client certainly does not have the text; otherwise the client's record decides.
    pub(super) async fn deliver(
        &self,
        way: HandoverWay,
        session: &NativeSession,
        text: &NativeText,
    ) -> bool {
        match way {
            HandoverWay::Plugin => {
                let word = PluginWord::Give {
                    handover_id: text.id.clone(),
                    session_id: session.session_id.clone(),
                    text: text.text.as_str().to_owned(),
                };
                self.plugins.ask(session.owner.as_ref(), word).await != PluginReport::Refused
            }
            HandoverWay::Inbox => {
                let Some(inbox) = inbox_of(session).await else { return false };
                let line = inbox_line(&uuid_of(text.id.as_str()), &text.text);
                write_to_inbox(&inbox, session, &line).await
            }
            HandoverWay::AppServer => {
                let NativeSession { process, session_id, .. } = session;
                let (id, words) = (text.id.as_str(), (text.text.as_str(), text.joins_turn));
                self.app_servers.deliver(process, session_id, id, words).await
            }
        }
    }

    /// What the client's record shows of messages that were handed over; `None` if it cannot be
    /// read now. `session` is `None` if the client is gone.
    pub(super) async fn record_shows(
        &self,
        way: HandoverWay,
        session: Option<&NativeSession>,
        question: &NativeQuestion,
    ) -> Option<ShownMessages> {
        match way {
            HandoverWay::Inbox => transcript_shows(session, question).await,
            HandoverWay::Plugin => plugin_shows(&self.plugins, session?, question).await,
            HandoverWay::AppServer => app_server_shows(&self.app_servers, session?, question).await,
        }
    }
}

async fn plugin_shows(
    plugins: &PluginConnections,
    session: &NativeSession,
    question: &NativeQuestion,
) -> Option<ShownMessages> {
    let word = PluginWord::Look {
        handover_id: question.id.clone(),
        session_id: session.session_id.clone(),
        marks: question.marks.clone(),
    };
    match plugins.ask(session.owner.as_ref(), word).await {
        PluginReport::Shows(read) => Some(Shown { read, ..nothing_shown() }),
        _ => None,
    }
}

async fn app_server_shows(
    connections: &AppServerConnections,
    session: &NativeSession,
    question: &NativeQuestion,
) -> Option<ShownMessages> {
    let NativeSession { process, session_id, .. } = session;
    let place = connections.find(process, session_id, question.id.as_str()).await?;
    let all = question.marks.iter().map(|(id, _)| id.clone()).collect();
    Some(match place {
        MessagePlace::Conversation => Shown { read: all, ..nothing_shown() },
        MessagePlace::Queue => Shown { waiting: all, ..nothing_shown() },
        MessagePlace::Nowhere => nothing_shown(),
    })
}

async fn transcript_shows(
    session: Option<&NativeSession>,
    question: &NativeQuestion,
) -> Option<ShownMessages> {
    let (session, question) = (session.cloned(), question.clone());
    let read = move || {
        if let Some(end) = &question.record {
            return claude_transcript::shown_since(end, &question.marks);
        }
        let NativeSession { process, session_id, .. } = session.as_ref()?;
        match claude_transcript::beginning_of(process, session_id) {
            Some(beginning) => claude_transcript::shown_since(&beginning, &question.marks),
            // A conversation has no record before its first prompt.
            None => Some(nothing_shown()),
        }
    };
    spawn_blocking(read).await.ok()?
}

const fn nothing_shown() -> ShownMessages {
    Shown { read: Vec::new(), waiting: Vec::new(), begun: Vec::new() }
}

/// The first version of Claude Code whose sessions have an inbox.
const FIRST: (u32, u32, u32) = (2, 1, 224);
/// How long the client's process may take to accept a text.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The sender, as the person at the terminal sees it. It is not a socket's name: there is no socket
/// for answers.
const FROM: &str = "svc";

/// The inbox of a session, if a person is at its terminal and its version has an inbox. A session
/// that a program runs is woken by its hook instead, as far as its settings allow.
async fn inbox_of(session: &NativeSession) -> Option<PathBuf> {
    let (process, id) = (session.process.clone(), session.session_id.clone());
    let entry = spawn_blocking(move || ClaudeSession::read(&process, &id)).await.ok()??;
    let has_inbox = entry.is_interactive() && version(entry.version.as_deref()?)? >= FIRST;
    entry.inbox.filter(|_| has_inbox)
}

fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text.splitn(3, '.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().ok()
    });
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// One line of the inbox. The client marks its own messages between sessions with the same tag. A
/// [`ModelText`] contains nothing that looks like the closing tag.
fn inbox_line(id: &str, text: &ModelText) -> String {
    let content = format!(
        "<cross-session-message from=\"{FROM}\" from-name=\"svc\" from-mode=\"prompting\">\n{}\n\
         </cross-session-message>",
        text.as_str()
    );
    let message = json!({
        "msgV": 1, "msg_id": id, "type": "user", "priority": "next", "from": FROM,
        "message": { "role": "user", "content": content },
    });
    format!("{message}\n")
}

/// Returns whether the client may have the line: after a failure, it is not known how much the
/// client accepted.
async fn write_to_inbox(inbox: &Path, session: &NativeSession, line: &str) -> bool {
    let connected = timeout(TIMEOUT, local_socket::connect_to_process(inbox, &session.process));
    let mut stream = match connected.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::warn!(%error, session = session.session_id, "cannot connect to an inbox");
            return false;
        }
        Err(_) => return false,
    };
    let written = async {
        stream.write_all(line.as_bytes()).await?;
        stream.shutdown().await
    };
    timeout(TIMEOUT, written).await.ok();
    true
}

/// Deterministic UUID of a hand-over's id: Claude Code expects UUIDs.
fn uuid_of(id: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let hex = hex::encode(&Sha256::digest(id)[..16]);
    let part = |from: usize, to: usize| &hex[from..to];
    format!("{}-{}-4{}-a{}-{}", part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (text, has_inbox) in [
            ("2.1.224", true),
            ("2.1.330", true),
            ("2.2.0-beta.1", true),
            ("10.0.0", true),
            ("2.1.223", false),
            ("2.1.99", false),
            ("1.9.900", false),
        ] {
            assert_eq!(version(text).is_some_and(|it| it >= FIRST), has_inbox, "{text}");
        }
        assert_eq!(version("of a later form"), None);
    }

    #[test]
    fn an_id_of_ours_is_a_uuid() {
        let id = uuid_of("ho_1");
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_eq!(id, uuid_of("ho_1"));
        assert_ne!(id, uuid_of("ho_2"));
    }
}
