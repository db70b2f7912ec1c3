//! The history of a session, without secrets of known shapes. Readers take it as data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    Caller, MessageId, NOT_BLANK, PeerReference, Timestamp,
    agent::{HistoryEntry, HistoryRole},
    conversation::{Provenance, SessionRelation, redacted},
    journal::Session,
    limits, quote,
};
use svc_store::{PageSize, RowPage};

use super::{CURRENT, ConversationCaller, Conversations, SessionRow, key_of_unknown};
use crate::boxed;
use crate::service::{Error, Result, check, team::readable_session};

/// Which part of a history.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct SessionHistoryQuery {
    /// How many of the latest texts.
    #[schemars(range(min = 1, max = limits::PAGE_MAX), extend("default" = limits::PAGE_DEFAULT))]
    pub limit: Option<u32>,
    /// The `before` of the previous page, for older texts.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub before: Option<String>,
    /// Include tool calls and their results.
    pub include_tools: Option<bool>,
}

/// What was said in a session.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionHistory {
    /// The session.
    pub session_key: String,
    /// The oldest first.
    pub messages: Vec<HistoryText>,
    /// Whether a text was cut, or some had no room.
    pub truncated: bool,
    /// Whether there are older ones.
    pub has_more: bool,
    /// Goes into `before` for the older ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// One text.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryText {
    /// Who said it: `user` is what the session was told, `assistant` what it said.
    pub role: HistoryRole,
    /// The words.
    pub text: String,
    /// The tool, of a call or its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// When.
    pub at: Timestamp,
    /// The message, of a session that a person started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// Where it comes from, if it is a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

impl Conversations {
    /// The history of a session: of a hosted one all of it, of an attended one the messages between
    /// it and the caller, as nobody reads another's mail. The person and the session itself get all
    /// its messages.
    ///
    /// # Errors
    /// [`Error::Forbidden`] or [`Error::NotFound`] if there is no such session that the caller may
    /// see.
    #[boxed]
    pub async fn history(
        &self,
        caller: &Caller,
        session: Option<&str>,
        named: &str,
        query: &SessionHistoryQuery,
    ) -> Result<SessionHistory> {
        check::key("sessionKey", Some(named))?;
        let requester = self.reader(caller, session).await?;
        let found = match self.find(&requester, named).await {
            Err(error @ (Error::Unseen(_) | Error::NotFound { .. })) => {
                let key = self.key_without_peer(caller, &requester, named).await?;
                Err(key.ok_or(error)?)
            }
            found => Ok(found?),
        };
        let limit = check::limit(query.limit)?;
        let before = query.before.as_deref();
        let before: Option<i64> = before
            .map(|text| text.parse().map_err(|_| Error::invalid("before", "is no cursor of ours")))
            .transpose()?;
        let row = match found {
            Ok(row) => row,
            Err(key) => return Ok(page_of(key, Vec::new(), false)),
        };
        let (texts, has_more) = match &row.agent {
            Some(agent) => {
                let page = (before, limit, query.include_tools.unwrap_or(false));
                let (entries, more) = self.agents.texts_before(&agent.info.id, page).await?;
                let texts = entries.into_iter().map(|(seq, entry)| (seq, of_entry(entry)));
                (texts.collect(), more)
            }
            None => self.mail_before(&requester, &row, before, limit).await?,
        };
        Ok(page_of(row.key(), texts, has_more))
    }

    /// The key of a session that has no peer yet, and so no messages: neither hooks nor the session
    /// itself have registered one. `None` if there is no such session that the caller may see.
    async fn key_without_peer(
        &self,
        caller: &Caller,
        requester: &ConversationCaller,
        named: &str,
    ) -> Result<Option<String>> {
        let named = if named == CURRENT { requester.key.as_str() } else { named };
        let id = match PeerReference::parse(named) {
            Some(PeerReference::SessionKey(key)) => key.session_id,
            _ => named.to_owned(),
        };
        let session = readable_session(&self.core, caller, &id).await?;
        let relation = |session: &Session| SessionRelation {
            is_self: requester.session.as_ref() == Some(&session.session_id),
            is_child: false,
            is_of_project: requester.project.is_some() && requester.project == session.project,
        };
        let is_seen = session.as_ref().is_some_and(|session| {
            requester.sees_all || self.policy().may_see(relation(session)).is_ok()
        });
        if !is_seen {
            return Ok(None);
        }
        let peer = self.core.store.peers().of_session(&id).await?;
        Ok(peer.is_none().then(|| key_of_unknown(&id)))
    }

    /// Messages of an attended session, latest first; and whether there are more.
    async fn mail_before(
        &self,
        requester: &ConversationCaller,
        row: &SessionRow,
        before: Option<i64>,
        limit: u32,
    ) -> Result<(Vec<(i64, HistoryText)>, bool)> {
        let peer = &row.peer.peer.peer_id;
        let sees_all = requester.sees_all || requester.sight(row).is_self;
        let store = &self.core.store;
        let size = PageSize::rows(limit);
        let page = match (&requester.peer, sees_all) {
            (_, true) => store.messages().of_peer(peer, before, size).await?,
            (Some(own), false) => store.messages().between(own, peer, before, size).await?,
            (None, false) => RowPage { rows: Vec::new(), more: false },
        };
        let texts = page.rows.into_iter().map(|row| {
            let message = row.message;
            let said = message.from_peer == peer.as_str();
            let text = HistoryText {
                role: if said { HistoryRole::Assistant } else { HistoryRole::User },
                text: message.text,
                tool: None,
                at: message.timestamp,
                message_id: Some(message.id),
                provenance: message.provenance,
            };
            (row.id, text)
        });
        Ok((texts.collect(), page.more))
    }
}

fn of_entry(entry: HistoryEntry) -> HistoryText {
    let text = [entry.content, entry.tool_summary, entry.tool_input, entry.tool_result];
    HistoryText {
        role: entry.role,
        text: text.into_iter().flatten().collect::<Vec<_>>().join("\n"),
        tool: entry.tool_name,
        at: entry.timestamp,
        message_id: None,
        provenance: None,
    }
}

/// Makes a page of `texts`, which come latest first: as many of them as fit, without secrets.
fn page_of(session_key: String, texts: Vec<(i64, HistoryText)>, has_older: bool) -> SessionHistory {
    let mut history = SessionHistory {
        session_key,
        messages: Vec::new(),
        truncated: false,
        has_more: has_older,
        before: None,
    };
    let (mut bytes, mut oldest) = (0, None);
    for (rank, mut text) in texts {
        let shown = redacted(&text.text).into_owned();
        let is_long = shown.chars().nth(limits::SESSION_HISTORY_CHARS).is_some();
        text.text = match shown.char_indices().nth(limits::SESSION_HISTORY_CHARS - 1) {
            Some((end, _)) if is_long => {
                history.truncated = true;
                format!("{}…", &shown[..end])
            }
            _ => shown,
        };
        // The text is measured as models get it: quoting what imitates our stamps makes it longer.
        let size = serde_json::to_string(&text)
            .map_or(0, |json| json.len().max(quote::json(&json).len()) + 1);
        // 1024 bytes are kept for the fields around the texts.
        if bytes + size > limits::SESSION_HISTORY_BYTES - 1024 && !history.messages.is_empty() {
            (history.truncated, history.has_more) = (true, true);
            break;
        }
        bytes += size;
        oldest = Some(rank);
        history.messages.push(text);
    }
    history.messages.reverse();
    history.before = oldest.filter(|_| history.has_more).map(|rank| rank.to_string());
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: String) -> HistoryText {
        HistoryText {
            role: HistoryRole::Assistant,
            text: words,
            tool: None,
            at: Timestamp::from_millis(0),
            message_id: None,
            provenance: None,
        }
    }

    #[test]
    fn a_page_is_bounded_and_holds_no_secret() {
        let key = format!("ghp_{}", "a1".repeat(18));
        let latest = vec![
            (9, text(format!("the key is {key}"))),
            (7, text("ü".repeat(limits::SESSION_HISTORY_CHARS))),
            (5, text("ü".repeat(limits::SESSION_HISTORY_CHARS + 1))),
        ];
        let page = page_of("agent:a:main".to_owned(), latest, false);
        let words: Vec<&str> = page.messages.iter().map(|text| text.text.as_str()).collect();
        assert_eq!(words[2], "the key is [redacted]", "the oldest first");
        assert_eq!(words[1].chars().count(), limits::SESSION_HISTORY_CHARS);
        assert!(words[0].ends_with("ü…") && page.truncated);
        assert_eq!(words[0].chars().count(), limits::SESSION_HISTORY_CHARS);
        assert_eq!((page.has_more, page.before), (false, None));

        let many = (0..100).rev().map(|rank| (rank, text("\u{1}".repeat(4_000)))).collect();
        let page = page_of("agent:a:main".to_owned(), many, false);
        let bytes = serde_json::to_string(&page).unwrap().len();
        assert!(bytes <= limits::SESSION_HISTORY_BYTES, "{bytes}");
        assert!(page.truncated && page.has_more && page.messages.len() > 1);
        let next = 100 - i64::try_from(page.messages.len()).unwrap();
        assert_eq!(page.before.as_deref(), Some(next.to_string().as_str()));
    }

    #[test]
    fn a_page_with_quoted_stamps_is_bounded() {
        let many = (0..100).rev().map(|rank| (rank, text("isUser=true ".repeat(330)))).collect();
        let page = page_of("agent:a:main".to_owned(), many, false);
        let shown = quote::json(&serde_json::to_string(&page).unwrap()).into_owned();
        assert!(shown.contains("is (quoted)User=true"), "{shown}");
        assert!(shown.len() <= limits::SESSION_HISTORY_BYTES, "{}", shown.len());
        assert!(page.truncated && page.has_more && page.messages.len() > 1);
    }
}
