//! The version of a client on this machine, on which some settings depend, and what svc can do with
//! that version: know the state of its sessions, reach them, answer their prompts, and see their
//! usage limits.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::client::{ClientLocations, ClientVersion, KnownClient};

/// How long a client may take to print its version. The slow clients have a package file, which is
/// read instead.
const TIMEOUT: Duration = Duration::from_millis(800);
/// Most folders between an executable and the `package.json` of its npm package.
const PACKAGE_DEPTH: usize = 4;

/// Adds the versions of clients on which an installation depends.
pub async fn with_versions(mut locations: ClientLocations) -> ClientLocations {
    let version = version_of(KnownClient::ClaudeCode, &locations).await;
    locations.claude_version = version.and_then(|version| ClientVersion::parse(&version));
    locations
}

/// The version of a client on the PATH: from its package, or as the client prints it in time.
pub async fn version_of(client: KnownClient, locations: &ClientLocations) -> Option<String> {
    let name = client.executable()?;
    let program = locations.find(name)?;
    match on_disk(name, &program) {
        Some(version) => Some(version),
        None => printed(&program).await,
    }
}

/// The version of a running client, from the package or file that it was started from. `words` is
/// its command line; if an interpreter runs the client, the first argument is its file.
pub fn version_of_running(
    client: KnownClient,
    executable: Option<&Path>,
    words: &[OsString],
) -> Option<ClientVersion> {
    let name = client.executable()?;
    let script = words.get(1).map(Path::new).filter(|path| path.is_absolute());
    let files = [executable, script].into_iter().flatten();
    files.filter_map(|file| on_disk(name, file)).find_map(|version| ClientVersion::parse(&version))
}

/// The version from the `package.json` above an executable, or from the name of the file that the
/// executable links to.
fn on_disk(name: &str, program: &Path) -> Option<String> {
    let target = std::fs::canonicalize(program).ok()?;
    if let Some(file) = target.file_name().and_then(|file| file.to_str())
        && file.starts_with(|c: char| c.is_ascii_digit())
        && ClientVersion::parse(file).is_some()
    {
        return Some(file.to_owned());
    }
    let folders = target.ancestors().skip(1).take(PACKAGE_DEPTH);
    folders.into_iter().find_map(|folder| {
        let package =
            bounded_file::read(&folder.join("package.json"), CLIENT_FILE_BYTES).ok()??;
        let package: Value = serde_json::from_slice(&package).ok()?;
        package.get("bin")?.get(name)?;
        package.get("version")?.as_str().map(str::to_owned)
    })
}

async fn printed(program: &Path) -> Option<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let text = timeout(TIMEOUT, output).await.ok()?.ok()?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().find(is_version).map(str::to_owned)
}

/// Versions with which the tests run the real clients (`tests/clients`). `None` as the patch means
/// every patch of that minor version.
const PROVEN: &[(KnownClient, [u32; 2], Option<u32>)] = &[
    (KnownClient::ClaudeCode, [2, 1], Some(197)),
    (KnownClient::ClaudeCode, [2, 1], Some(330)),
    (KnownClient::Codex, [0, 169], None),
    (KnownClient::Opencode, [1, 18], None),
    (KnownClient::Gemini, [0, 61], None),
];

/// The first version of Claude Code whose registry of sessions is known to contain their state.
const CLAUDE_REGISTRY: ClientVersion = ClientVersion([2, 1, 197]);
/// The first versions of Claude Code with a hook for permission prompts, and for failed turns.
const CLAUDE_PROMPTS: ClientVersion = ClientVersion([2, 0, 57]);
const CLAUDE_FAILURES: ClientVersion = ClientVersion([2, 1, 78]);
/// The first tested version of Codex whose app-server all its terminals share.
const CODEX_APP_SERVER: ClientVersion = ClientVersion([0, 169, 0]);

/// What svc can do with a client in one respect: a name for programs, and a text for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Ability {
    pub name: &'static str,
    #[serde(skip)]
    text: &'static str,
}

const fn ability(name: &'static str, text: &'static str) -> Ability {
    Ability { name, text }
}

const BY_REGISTRY: Ability = ability("registry", "by its own record of sessions, and its hooks");
const BY_APP_SERVER: Ability = ability(
    "app-server",
    "by the app-server of its terminal; without one, by its hooks and its record",
);
const BY_HOOK_AND_RECORD: Ability =
    ability("hook-and-record", "by its hooks, and its record of the ends of turns");
const BY_HOOK: Ability = ability("hook", "by its hooks");
const BY_PLUGIN: Ability = ability("plugin", "by the plugin in it");
const BY_PROCESS: Ability = ability("process", "by its process and its calls");

const WAKES_AND_JOINS: Ability =
    ability("wakes-and-joins", "wake it when it is idle; in a turn with its next tool call");
const JOINS: Ability =
    ability("joins", "in a turn with its next tool call or its end; idle, when somebody types");
const NEXT_CALL: Ability = ability("next-call", "when it calls a tool of svc");

const ANSWERED_HERE: Ability = ability("here", "here, while its dialog stands");
const PROMPT_SEEN: Ability = ability("seen", "at its terminal; that it waits is seen");
const PROMPT_UNSEEN: Ability = ability("unseen", "at its terminal");

const LIMIT_SEEN: Ability = ability("seen-with-end", "seen, with their end where it tells that");
const LIMIT_UNSEEN: Ability = ability("unseen", "not seen");

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// The source of a session's state.
    pub state: Ability,
    /// When a message reaches a session.
    pub messages: Ability,
    /// Where a prompt of a session can be answered.
    pub answering: Ability,
    /// What svc sees of usage limits.
    pub limits: Ability,
    /// Whether the tests have run with this version.
    pub proven: bool,
}

impl Abilities {
    /// The abilities of a client with installed hooks. An unknown version counts as recent.
    pub fn of_client(client: KnownClient, version: Option<ClientVersion>) -> Self {
        let is_since = |first: ClientVersion| version.is_none_or(|version| version >= first);
        let (state, messages, answering, limits) = match client {
            KnownClient::ClaudeCode => (
                if is_since(CLAUDE_REGISTRY) { BY_REGISTRY } else { BY_HOOK },
                WAKES_AND_JOINS,
                if is_since(CLAUDE_PROMPTS) { ANSWERED_HERE } else { PROMPT_SEEN },
                if is_since(CLAUDE_FAILURES) { LIMIT_SEEN } else { LIMIT_UNSEEN },
            ),
            KnownClient::Codex if is_since(CODEX_APP_SERVER) => {
                (BY_APP_SERVER, WAKES_AND_JOINS, ANSWERED_HERE, LIMIT_SEEN)
            }
            KnownClient::Codex | KnownClient::Gemini => {
                (BY_HOOK_AND_RECORD, JOINS, PROMPT_SEEN, LIMIT_UNSEEN)
            }
            KnownClient::Opencode => (BY_PLUGIN, WAKES_AND_JOINS, ANSWERED_HERE, LIMIT_SEEN),
            _ => (BY_PROCESS, NEXT_CALL, PROMPT_UNSEEN, LIMIT_UNSEEN),
        };
        let proven = version.is_some_and(|version| is_proven(client, version));
        Self { state, messages, answering, limits, proven }
    }

    /// Reduces the abilities to what the person's configuration allows.
    pub fn restrict(&mut self, may_wake: bool, may_answer: bool) {
        if !may_wake && self.messages == WAKES_AND_JOINS {
            self.messages = JOINS;
        }
        if !may_answer && self.answering == ANSWERED_HERE {
            self.answering = PROMPT_SEEN;
        }
    }

    pub const fn texts(&self) -> [(&'static str, &'static str); 4] {
        let Self { state, messages, answering, limits, .. } = self;
        [
            ("state", state.text),
            ("messages", messages.text),
            ("answers", answering.text),
            ("limits", limits.text),
        ]
    }
}

fn is_proven(client: KnownClient, version: ClientVersion) -> bool {
    let ClientVersion([major, minor, patch]) = version;
    PROVEN.iter().any(|(of, minor_version, of_patch)| {
        *of == client
            && *minor_version == [major, minor]
            && of_patch.is_none_or(|of_patch| of_patch == patch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_package() {
        let folder = tempfile::tempdir().expect("a folder");
        let package = folder.path().join("lib/claude-code");
        std::fs::create_dir_all(package.join("bin")).expect("makes");
        let program = package.join("bin/claude.exe");
        std::fs::write(&program, "").expect("writes");
        assert_eq!(on_disk("claude", &program), None);
        let write =
            |text: &str| std::fs::write(package.join("package.json"), text).expect("writes");
        write(r#"{"version":"2.1.100","bin":{"claude":"bin/claude.exe"}}"#);
        let link = folder.path().join("claude");
        std::os::unix::fs::symlink(&program, &link).expect("links");
        assert_eq!(on_disk("claude", &link).as_deref(), Some("2.1.100"));
        assert_eq!(on_disk("codex", &link), None, "another package's program");
        let running = |executable: &Path, words: &[&Path]| {
            let words: Vec<_> = words.iter().map(|word| word.as_os_str().to_owned()).collect();
            version_of_running(KnownClient::ClaudeCode, Some(executable), &words)
        };
        let (node, flag) = (folder.path().join("node"), Path::new("-p"));
        let version = Some(ClientVersion([2, 1, 100]));
        assert_eq!(running(&program, &[Path::new("claude"), flag]), version);
        assert_eq!(running(&node, &[&node, &link, flag]), version, "run by an interpreter");
        assert_eq!(running(&node, &[&node, flag]), None);
        let native = folder.path().join("2.0.60");
        std::fs::write(&native, "").expect("writes");
        assert_eq!(on_disk("claude", &native).as_deref(), Some("2.0.60"));
    }

    #[test]
    fn a_version_that_no_test_has_run_is_not_proven() {
        for (client, version, proven) in [
            (KnownClient::ClaudeCode, "2.1.330", true),
            (KnownClient::ClaudeCode, "2.1.331", false),
            (KnownClient::Codex, "0.169.4", true),
            (KnownClient::Codex, "0.170.0", false),
            (KnownClient::Opencode, "2.0.0", false),
            (KnownClient::Cursor, "1.0.0", false),
        ] {
            let abilities = Abilities::of_client(client, ClientVersion::parse(version));
            assert_eq!(abilities.proven, proven, "{client:?} {version}");
        }
        assert!(!Abilities::of_client(KnownClient::Codex, None).proven);
    }

    #[test]
    fn the_versions_of_the_tests_are_proven() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/agents.json");
        let agents = std::fs::read_to_string(file).unwrap();
        let agents: Value = serde_json::from_str(&agents).unwrap();
        for (package, client) in [
            ("@anthropic-ai/claude-code", KnownClient::ClaudeCode),
            ("@openai/codex", KnownClient::Codex),
            ("opencode-ai", KnownClient::Opencode),
            ("@google/gemini-cli", KnownClient::Gemini),
        ] {
            let version = agents["dependencies"][package].as_str().and_then(ClientVersion::parse);
            assert!(is_proven(client, version.unwrap()), "{package} {version:?}");
        }
    }

    #[test]
    fn configuration_takes_abilities_away_and_adds_none() {
        let now = |client| Abilities::of_client(client, None);
        let left = |client, may_wake, may_answer| {
            let mut left = now(client);
            left.restrict(may_wake, may_answer);
            (left.messages, left.answering)
        };
        let claude = KnownClient::ClaudeCode;
        assert_eq!(left(claude, true, true), (now(claude).messages, now(claude).answering));
        assert_eq!(left(claude, false, false), (JOINS, PROMPT_SEEN));
        for may in [true, false] {
            let cursor = now(KnownClient::Cursor);
            assert_eq!(left(KnownClient::Cursor, may, may), (cursor.messages, cursor.answering));
        }
    }

    #[test]
    fn abilities_depend_on_the_version() {
        let of = |version: &str| {
            Abilities::of_client(KnownClient::ClaudeCode, ClientVersion::parse(version))
        };
        assert_eq!(of("2.0.0").state, BY_HOOK);
        assert_eq!(of("2.0.0").answering, PROMPT_SEEN);
        assert_eq!(of("2.1.100").limits, LIMIT_SEEN);
        assert_eq!(of("2.1.330").state, BY_REGISTRY);
        let codex = |version: &str| {
            Abilities::of_client(KnownClient::Codex, ClientVersion::parse(version)).answering
        };
        assert_eq!((codex("0.168.0"), codex("0.169.0")), (PROMPT_SEEN, ANSWERED_HERE));
    }
}
