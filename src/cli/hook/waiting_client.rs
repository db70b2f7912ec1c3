//! The client beside which `svc hook wait` runs: whether a message can wake its session, and
//! whether the waiter would block it.

use std::ffi::OsString;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;
use svc_install::{ClientVersion, KnownClient, probe};
use svc_model::ProcessIdentity;
use svc_sys::bounded_file;
use svc_sys::config::{Env, WakeMode};
use svc_sys::process_list;

/// Prefix of the entry points of sessions that a program runs: `claude -p` and the Agent SDK. Such
/// a session ends only after all its hooks, so a waiter would keep it open for ever.
const HEADLESS: &str = "sdk-";
/// The first version of Claude Code that runs the waiter beside the session. Earlier versions block
/// on it at the start of a session and at the end of each turn.
const REWAKE_SINCE: ClientVersion = ClientVersion([2, 1, 64]);
/// The first version that wakes a session without a terminal. Earlier versions keep the message
/// until the next prompt, and lose it if there is none.
const HEADLESS_SINCE: ClientVersion = ClientVersion([2, 1, 138]);
/// Bytes at the end of a transcript in which its version is looked for.
const MAX_TRANSCRIPT: u64 = 1024 * 1024;
/// Argument of a client that takes prompts on its standard input.
const STREAM_INPUT: &str = "stream-json";

#[derive(Debug, Default)]
pub(super) struct WaitingClient {
    executable: Option<PathBuf>,
    /// The command line; `None` if the system does not show it.
    words: Option<Vec<OsString>>,
}

impl WaitingClient {
    pub(super) fn from_process(process: Option<&ProcessIdentity>) -> Self {
        let Some(process) = process else { return Self::default() };
        Self {
            executable: process_list::executable(process.pid),
            words: process_list::command_line(process.pid),
        }
    }

    /// Whether a waiter may start at the event in `payload`: `mode` includes sessions of this kind,
    /// the client can wake the session, and the client does not block on the waiter.
    pub(super) fn can_be_woken(&self, mode: WakeMode, env: &Env, payload: &Value) -> bool {
        let is_before_turn = precedes_turn(payload);
        let version = self.version(env, payload, is_before_turn);
        let is_headless = is_headless(env);
        match mode {
            WakeMode::Never => return false,
            WakeMode::Terminal if is_headless => return false,
            // A session whose prompt is on the command line is never idle, and blocks on the
            // waiter.
            WakeMode::Always if is_headless && !self.takes_prompts() => return false,
            WakeMode::Terminal | WakeMode::Always => {}
        }
        let since = if is_headless { HEADLESS_SINCE } else { REWAKE_SINCE };
        match version {
            Some(version) => version >= since,
            // An old client would block on the waiter before it starts the session or the turn.
            None => !is_before_turn,
        }
    }

    /// The running version. Before the first turn of a session its transcript does not exist, or is
    /// that of an earlier run.
    fn version(&self, env: &Env, payload: &Value, is_before_turn: bool) -> Option<ClientVersion> {
        let words = self.words.as_deref().unwrap_or_default();
        let running =
            probe::version_of_running(KnownClient::ClaudeCode, self.executable.as_deref(), words);
        let in_transcript = || version_in_transcript(payload).filter(|_| !is_before_turn);
        running.or_else(in_transcript).or_else(|| version_in_environment(env))
    }

    fn takes_prompts(&self) -> bool {
        let Some(words) = &self.words else { return true };
        words.iter().any(|word| word == STREAM_INPUT || word == "--input-format=stream-json")
    }
}

/// Whether the hooks of the event in `payload` run before the model is asked: one of them delivers
/// the messages that wait for the session.
pub(super) fn precedes_turn(payload: &Value) -> bool {
    let event = payload.get("hook_event_name").and_then(Value::as_str);
    matches!(event, Some("SessionStart" | "UserPromptSubmit"))
}

fn is_headless(env: &Env) -> bool {
    let entry = env.text("CLAUDE_CODE_ENTRYPOINT").ok().flatten();
    entry.is_some_and(|entry| entry.starts_with(HEADLESS))
}

/// The version in an environment variable of later versions: `claude-code_2-1-330_harness`.
fn version_in_environment(env: &Env) -> Option<ClientVersion> {
    let agent = env.text("AI_AGENT").ok().flatten()?.strip_prefix("claude-code_")?;
    ClientVersion::parse(&agent.split('_').next()?.replace('-', "."))
}

/// The version in the last record of the session's transcript that has one.
fn version_in_transcript(payload: &Value) -> Option<ClientVersion> {
    let path = Path::new(payload.get("transcript_path")?.as_str()?);
    let mut file = bounded_file::open_regular(path).ok()?;
    let length = file.metadata().ok()?.len();
    let begin = length.saturating_sub(MAX_TRANSCRIPT);
    file.seek(SeekFrom::Start(begin)).ok()?;
    let mut end = Vec::new();
    file.take(MAX_TRANSCRIPT).read_to_end(&mut end).ok()?;
    // The first line may be incomplete, and then it is not JSON.
    end.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let record: Value = serde_json::from_slice(line).ok()?;
        ClientVersion::parse(record.get("version")?.as_str()?)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn client(words: &[&str]) -> WaitingClient {
        WaitingClient { executable: None, words: Some(words.iter().map(OsString::from).collect()) }
    }

    #[test]
    fn wake_ability_depends_on_mode_entry_point_and_version() {
        use WakeMode::{Always, Never, Terminal};
        let folder = tempfile::tempdir().expect("a folder");
        let transcript = folder.path().join("t.jsonl");
        let (start, prompt, stop) = ("SessionStart", "UserPromptSubmit", "Stop");
        let sdk = "sdk-cli";
        let stream = &["claude", "-p", "--input-format", "stream-json"][..];
        let joined = &["claude", "-p", "--input-format=stream-json"][..];
        let once = &["claude", "-p", "do it"][..];
        let (new, middle, old) = (Some("2.1.330"), Some("2.1.100"), Some("2.0.60"));
        for (mode, entry, words, version, event, expected) in [
            (Terminal, "cli", &["claude"][..], new, start, true),
            (Terminal, "cli", &["claude"], middle, start, true),
            (Terminal, "cli", &["claude"], old, start, false),
            (Terminal, "cli", &["claude"], None, start, false),
            (Terminal, "cli", &["claude"], new, prompt, true),
            (Terminal, "cli", &["claude"], None, prompt, false),
            (Terminal, "cli", &["claude"], None, stop, true),
            (Terminal, sdk, stream, new, stop, false),
            (Always, sdk, stream, new, start, true),
            (Always, "sdk-ts", joined, new, stop, true),
            (Always, sdk, stream, middle, stop, false),
            (Always, sdk, once, new, start, false),
            (Always, sdk, once, new, stop, false),
            (Always, "cli", &["claude"], new, start, true),
            (Never, "cli", &["claude"], new, stop, false),
            (Never, sdk, stream, new, stop, false),
        ] {
            let agent =
                version.map(|version| format!("claude-code_{}_harness", version.replace('.', "-")));
            let agent = agent.as_deref().unwrap_or("codex");
            let env =
                [("CLAUDE_CODE_ENTRYPOINT", entry), ("AI_AGENT", agent)].into_iter().collect();
            let payload = json!({ "hook_event_name": event, "transcript_path": transcript });
            let can = client(words).can_be_woken(mode, &env, &payload);
            assert_eq!(can, expected, "{mode:?} {entry} {words:?} {version:?} {event}");
        }
    }

    #[test]
    fn the_program_says_its_version_before_the_transcript_and_that_before_the_environment() {
        let folder = tempfile::tempdir().expect("a folder");
        let transcript = folder.path().join("t.jsonl");
        std::fs::write(&transcript, "{\"version\":\"2.1.70\"}\n").expect("writes");
        let native = folder.path().join("2.1.80");
        std::fs::write(&native, "").expect("writes");
        let env: Env = [("AI_AGENT", "claude-code_2-1-90_harness")].into_iter().collect();
        let payload = json!({ "transcript_path": transcript });
        let here = WaitingClient { executable: Some(native), words: None };
        let version =
            |client: &WaitingClient, is_before_turn| client.version(&env, &payload, is_before_turn);
        assert_eq!(version(&here, false), Some(ClientVersion([2, 1, 80])));
        let unknown = WaitingClient::default();
        assert_eq!(version(&unknown, false), Some(ClientVersion([2, 1, 70])));
        assert_eq!(version(&unknown, true), Some(ClientVersion([2, 1, 90])), "of an earlier run");
    }

    #[test]
    fn the_transcript_says_which_version_runs_the_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.jsonl");
        let version = |text: &str| {
            std::fs::write(&path, text).expect("writes");
            version_in_transcript(&json!({ "transcript_path": path }))
                .map(|version| version.to_string())
        };
        assert_eq!(version(""), None);
        let resumed =
            "{\"version\":\"2.0.0\"}\n{\"version\":\"2.1.330\"}\n{\"a\":{\"version\":\"1.0.0\"}}\n";
        assert_eq!(version(resumed).as_deref(), Some("2.1.330"));
        let long = format!(
            "{{\"version\":\"2.1.1\",\"a\":\"{}\"}}\n{{\"version\":\"2.0.60\"}}",
            "x".repeat(2_000_000)
        );
        assert_eq!(version(&long).as_deref(), Some("2.0.60"));
        assert_eq!(version_in_transcript(&json!({ "transcript_path": "/nowhere" })), None);
    }
}
