//! Claude Code's inbox: a socket of each session, which takes lines of JSON and answers nothing.
//! A text that comes while the session is idle begins a turn; the client's own record of the
//! conversation shows what it queued and what was read.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::json;
use svc_model::{HandoverWay, hook::HookClient, quote::ModelText};
use svc_sys::{
    client_records::{
        ClaudeSession,
        claude_transcript::{self, Shown},
    },
    local_socket,
};
use tokio::{io::AsyncWriteExt as _, task::spawn_blocking, time::timeout};

use super::native_way::{
    NativeDelivery, NativeQuestion, NativeRecord, NativeSession, NativeText, NativeTraits,
    NativeWay,
};

/// The first version whose sessions take messages.
const FIRST: (u32, u32, u32) = (2, 1, 224);
/// How long its process may take to accept a text.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who the text is from, for the person at the terminal. It names no socket: none of ours takes
/// answers.
const FROM: &str = "svc";

/// The way through the inboxes of Claude Code.
#[derive(Debug)]
pub(super) struct ClaudeInbox;

/// The inbox of a session, if a person is at its terminal and its version has one. A session that a
/// program runs is woken by its hook, as far as its settings say so.
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

/// One line of the inbox. The words around the text are those of the client's own messages between
/// sessions; nothing in a text for models looks like their end.
fn line(id: &str, text: &ModelText) -> String {
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

async fn write(inbox: &Path, session: &NativeSession, line: &str) -> NativeDelivery {
    let connected = timeout(PATIENCE, local_socket::connect_to_process(inbox, &session.process));
    let mut stream = match connected.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::warn!(%error, session = session.session_id, "an inbox is not used");
            return NativeDelivery::NotTaken;
        }
        Err(_) => return NativeDelivery::NotTaken,
    };
    let written = async {
        stream.write_all(line.as_bytes()).await?;
        stream.shutdown().await
    };
    match timeout(PATIENCE, written).await {
        Ok(Ok(())) => NativeDelivery::Taken,
        _ => NativeDelivery::Unknown,
    }
}

impl NativeWay for ClaudeInbox {
    fn traits(&self) -> NativeTraits {
        NativeTraits {
            via: HandoverWay::Inbox,
            client: HookClient::ClaudeCode,
            // Its hooks bring messages into a turn, at the same places as the inbox would.
            joins_turns: false,
            tries: 1,
            answers_for_itself: false,
            keeps_queue: false,
        }
    }

    fn is_open<'a>(&'a self, session: &'a NativeSession) -> BoxFuture<'a, bool> {
        async { inbox_of(session).await.is_some() }.boxed()
    }

    fn record<'a>(&'a self, session: &'a NativeSession) -> BoxFuture<'a, Option<String>> {
        async {
            let (process, id) = (session.process.clone(), session.session_id.clone());
            spawn_blocking(move || claude_transcript::end_of(&process, &id)).await.ok()?
        }
        .boxed()
    }

    fn deliver<'a>(
        &'a self,
        session: &'a NativeSession,
        text: &'a NativeText,
    ) -> BoxFuture<'a, NativeDelivery> {
        async {
            let Some(inbox) = inbox_of(session).await else { return NativeDelivery::NotTaken };
            write(&inbox, session, &line(&uuid_of(text.id.as_str()), &text.text)).await
        }
        .boxed()
    }

    fn record_shows<'a>(
        &'a self,
        session: Option<&'a NativeSession>,
        question: &'a NativeQuestion,
    ) -> BoxFuture<'a, NativeRecord> {
        async move {
            let (session, question) = (session.cloned(), question.clone());
            let read = move || {
                if let Some(end) = &question.record {
                    return claude_transcript::shown_since(end, &question.marks);
                }
                // A conversation has no record before its first prompt.
                let NativeSession { process, session_id, .. } = session.as_ref()?;
                match claude_transcript::beginning_of(process, session_id) {
                    Some(beginning) => claude_transcript::shown_since(&beginning, &question.marks),
                    None => {
                        Some(Shown { read: Vec::new(), waiting: Vec::new(), begun: Vec::new() })
                    }
                }
            };
            match spawn_blocking(read).await {
                Ok(Some(Shown { read, waiting, begun })) => {
                    NativeRecord::Shows { read, waiting, begun }
                }
                _ => NativeRecord::Unreadable,
            }
        }
        .boxed()
    }
}

/// An id of ours in the form of the client's own, which are UUIDs.
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
