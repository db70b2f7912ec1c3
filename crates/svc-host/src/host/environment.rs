//! The variables that an agent gets.

use std::collections::BTreeMap;

use svc_model::agent::{AGENT_MARK, AgentBackend, HostSpec};

/// What every program needs.
const COMMON: [&str; 16] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TERM",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
];
/// Keys, logins and addresses of the vendors.
const CLAUDE: [&str; 6] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_MODEL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CONFIG_DIR",
];
const CODEX: [&str; 4] = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"];
const GEMINI: [&str; 9] = [
    "GEMINI_API_KEY",
    "GEMINI_MODEL",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GEMINI_CLI_HOME",
];
const OPENCODE: [&str; 4] =
    ["OPENCODE_API_KEY", "OPENCODE_CONFIG", "OPENROUTER_API_KEY", "OPENCODE_CONFIG_CONTENT"];

/// Variables of ours that a caller may have and an agent must not, unless its settings name them.
fn is_ours(name: &str) -> bool {
    name.starts_with("CLAUDECODE") || name == "SVC_TOKEN" || name == "SVC_TOKEN_FILE"
}

/// Names that pass from the host's own environment.
fn passes(backend: AgentBackend, name: &str) -> bool {
    let lists: &[&[&str]] = match backend {
        AgentBackend::Claude => &[&CLAUDE],
        AgentBackend::Codex => &[&CODEX],
        AgentBackend::Gemini => &[&GEMINI],
        // These run models of any vendor.
        AgentBackend::OpenCode | AgentBackend::Acp => &[&CLAUDE, &CODEX, &GEMINI, &OPENCODE],
        AgentBackend::Exec => &[],
    };
    !is_ours(name) && (COMMON.contains(&name) || lists.iter().any(|names| names.contains(&name)))
}

/// The whole environment of an agent: what passes of `own`, then what its settings say, then what its backend needs.
pub(super) fn agent_environment(
    spec: &HostSpec,
    own: impl Iterator<Item = (String, String)>,
    backend: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let passed = own.filter(|(name, _)| passes(spec.backend, name));
    let set = spec.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    // By this the agent and all that it starts are found, should nothing else of the host be left.
    let mark = (AGENT_MARK.to_owned(), spec.agent_id.as_str().to_owned());
    let all: BTreeMap<_, _> = passed.chain(set).chain(backend).chain([mark]).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_passes() {
        let own = ["PATH", "HOME", "SECRET", "CLAUDECODE", "SVC_TOKEN", "OPENAI_API_KEY", "LANG"];
        for (backend, expected) in [
            (AgentBackend::Exec, "HOME LANG PATH REVIEW SVC_AGENT_ID"),
            (AgentBackend::Codex, "HOME LANG OPENAI_API_KEY PATH REVIEW SVC_AGENT_ID"),
            (AgentBackend::Claude, "HOME LANG PATH REVIEW SVC_AGENT_ID"),
        ] {
            let spec = HostSpec {
                backend,
                env: BTreeMap::from([("REVIEW".to_owned(), "1".to_owned())]),
                ..super::super::testing::spec(&["true"])
            };
            let own = own.map(|name| (name.to_owned(), "x".to_owned()));
            let all = agent_environment(&spec, own.into_iter(), []);
            let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{backend}");
        }
    }
}
