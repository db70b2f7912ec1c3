//! An entry with its variables filled in.

use std::path::{Path, PathBuf};

use crate::{
    config::{Env, sources::PlannedSource},
    domain::source::{Redactor, SourceEntry, SourceTransport, expand},
    service::sources::SourceKey,
};

/// Variables of the daemon's environment that every child gets.
const INHERITED: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TERM",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
];

/// A server that is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceSpec {
    pub(super) key: SourceKey,
    pub(super) entry: SourceEntry,
    /// Changes with each change of the entry.
    pub(super) fingerprint: String,
}

/// A program that is to be started.
#[derive(Debug, Clone)]
pub(super) struct FilledCommand {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: PathBuf,
    pub(super) redactor: Redactor,
}

impl SourceSpec {
    /// The server of an entry that counts; `None` if it cannot be used.
    pub(super) fn of(planned: &PlannedSource) -> Option<Self> {
        let entry = planned.entry.as_ref().ok()?.clone();
        let project = planned.project.clone().unwrap_or_default();
        let key = SourceKey { name: planned.name.clone(), project };
        Some(Self { key, entry, fingerprint: planned.fingerprint.clone() })
    }

    /// Whether it is a server inside the daemon.
    pub(super) fn is_builtin(&self) -> bool {
        matches!(self.entry.transport, SourceTransport::Builtin { .. })
    }

    /// Fills in the variables of a program's entry. The error names the field and the variable.
    pub(super) fn fill(&self, env: &Env, root: Option<&str>) -> Result<FilledCommand, String> {
        let SourceTransport::Stdio { command, args, env: own, cwd } = &self.entry.transport else {
            return Err("this build starts programs alone, and no remote servers".to_owned());
        };
        let value_of =
            |name: &str| env.os(name).and_then(|value| value.to_str().map(str::to_owned));
        let mut used = Vec::new();
        let mut filled = |field: &str, text: &str| {
            expand(text, &value_of, &mut used).map_err(|missing| {
                format!("{field}: the variable {} is not set, and has no default", missing.0)
            })
        };
        let program = filled("command", command)?;
        let args = args.iter().enumerate().map(|(at, arg)| filled(&format!("args[{at}]"), arg));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        let mut variables = self.entry.inherited_variables(env);
        for (name, value) in own {
            let value = filled(&format!("env.{name}"), value)?;
            variables.retain(|(known, _)| known != name);
            variables.push((name.clone(), value));
        }
        let cwd = cwd.as_deref().map(|cwd| filled("cwd", cwd)).transpose()?;
        for name in &self.entry.env_inherit {
            used.extend(value_of(name));
        }
        let home = || value_of("HOME").unwrap_or_else(|| "/".to_owned());
        let cwd = root.map(str::to_owned).or(cwd).unwrap_or_else(home);
        let cwd = Path::new(&cwd);
        let cwd = if cwd.is_absolute() { cwd.to_owned() } else { Path::new(&home()).join(cwd) };
        if let Some(root) = root {
            variables.push(("CLAUDE_PROJECT_DIR".to_owned(), root.to_owned()));
        }
        Ok(FilledCommand { program, args, env: variables, cwd, redactor: Redactor::new(used) })
    }
}

impl SourceEntry {
    /// What a child gets of the daemon's environment.
    pub(super) fn inherited_variables(&self, env: &Env) -> Vec<(String, String)> {
        let names = INHERITED.into_iter().chain(self.env_inherit.iter().map(String::as_str));
        let value_of = |name: &str| env.os(name)?.to_str().map(str::to_owned);
        names.filter_map(|name| Some((name.to_owned(), value_of(name)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_child_gets_what_it_is_given_and_no_more() {
        let written = json!({
            "command": "${BIN:-cat}", "args": ["--key=${KEY}"], "env": { "TOKEN": "${KEY}", "PATH": "/own" },
            "env_inherit": ["EXTRA"],
        });
        let (entry, _) = SourceEntry::parse(&written, true).expect("is good");
        let key = SourceKey { name: "x".to_owned(), project: String::new() };
        let spec = SourceSpec { key, entry, fingerprint: String::new() };
        let pairs =
            [("PATH", "/bin"), ("HOME", "/h"), ("KEY", "secret1"), ("EXTRA", "e"), ("OTHER", "o")];
        let env: Env = pairs.into_iter().collect();
        let filled = spec.fill(&env, None).expect("is filled");
        assert_eq!((filled.program.as_str(), filled.args[0].as_str()), ("cat", "--key=secret1"));
        let mut variables = filled.env.clone();
        variables.sort();
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            variables,
            [("EXTRA", "e"), ("HOME", "/h"), ("PATH", "/own"), ("TOKEN", "secret1")]
        );
        assert_eq!(filled.cwd, Path::new("/h"));
        assert_eq!(filled.redactor.hide("--key=secret1"), "--key=***");
        let none: Env = [("PATH", "/bin")].into_iter().collect();
        let problem = spec.fill(&none, None).expect_err("KEY is missing");
        assert!(problem.contains("args[0]") && problem.contains("KEY"), "{problem}");
    }
}
