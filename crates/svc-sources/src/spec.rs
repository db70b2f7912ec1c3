//! An entry with its variables filled in, and the command that prints headers for a server at a
//! URL.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::{Map, Value};
use svc_core::service::sources::SourceKey;
use svc_model::source::{
    MissingVariable, Redactor, RemoteKind, Sharing, SourceEntry, SourceTransport, expand,
};
use svc_sys::config::{
    Env,
    sources::{PlannedSource, SecretBearer},
};
use tokio::{io::AsyncReadExt as _, process::Command};

/// Variables of the daemon's environment that every child inherits.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceSpec {
    /// The server's name, and the folder of the project's file that names the server.
    pub(super) key: SourceKey,
    pub(super) root: Option<String>,
    /// The base folder of the entry's relative paths.
    pub(super) base: PathBuf,
    pub(super) entry: SourceEntry,
    /// Changes with each change of the entry.
    pub(super) fingerprint: String,
    /// The approval of the project's file that names it; `None` if no project's file does.
    pub(super) approval: Option<String>,
    /// Changes with the secrets that were set for it.
    pub(super) secrets: String,
    pub(super) bearer: SecretBearer,
}

#[derive(Debug, Clone)]
pub(super) struct FilledCommand {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: PathBuf,
    pub(super) redactor: Redactor,
}

#[derive(Debug, Clone)]
pub(super) struct FilledRemote {
    pub(super) kind: RemoteKind,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) helper: Option<HeadersHelper>,
    pub(super) redactor: Redactor,
}

#[derive(Debug, Clone)]
pub(super) enum FilledEntry {
    Command(FilledCommand),
    Remote(FilledRemote),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Variables<'a> {
    /// The secrets that were set for the server. They override the environment.
    pub(super) secrets: &'a BTreeMap<String, String>,
    /// Names of secrets that are kept for other servers of the same name.
    pub(super) withheld: &'a BTreeSet<String>,
    pub(super) env: &'a Env,
}

impl Variables<'_> {
    /// The text of a field with its variables filled in; their values are appended to `used`.
    fn fill(&self, field: &str, text: &str, used: &mut Vec<String>) -> Result<String, String> {
        let value_of =
            |name: &str| self.secrets.get(name).cloned().or_else(|| self.env_value(name));
        expand(text, &value_of, used).map_err(|MissingVariable(name)| {
            let text = format!("{field}: the variable {name} is not set, and has no default");
            let elsewhere = "; the secret of that name is kept for another address or file";
            if self.withheld.contains(&name) { text + elsewhere } else { text }
        })
    }

    fn env_value(&self, name: &str) -> Option<String> {
        self.env.os(name).and_then(|value| value.to_str().map(str::to_owned))
    }
}

pub(super) fn key_of(planned: &PlannedSource) -> SourceKey {
    SourceKey { name: planned.name.clone(), project: planned.folder.clone().unwrap_or_default() }
}

impl SourceSpec {
    /// The server of an entry in force; `None` if the entry cannot be used.
    pub(super) fn parse(planned: &PlannedSource) -> Option<Self> {
        let entry = planned.entry.as_ref().ok()?.clone();
        let (key, root) = (key_of(planned), planned.project.clone());
        let fingerprint = planned.fingerprint.clone();
        let bearer = SecretBearer {
            server: planned.name.clone(),
            destination: planned.secret_destination()?,
            is_own: planned.is_own,
        };
        let (approval, base) = (planned.approval.clone(), PathBuf::from(&planned.base));
        let secrets = String::new();
        Some(Self { key, root, base, entry, fingerprint, approval, secrets, bearer })
    }

    /// Identifies what pinned definitions belong to: the entry, and the approval of its file.
    pub(super) fn pin_basis(&self) -> String {
        match &self.approval {
            Some(approval) => format!("{approval}:{}", self.fingerprint),
            None => self.fingerprint.clone(),
        }
    }

    /// Whether callers get the approved definitions, and no later ones.
    pub(super) fn is_pinned(&self) -> bool {
        self.approval.is_some()
    }

    fn is_of_plugin(&self) -> bool {
        !self.bearer.is_own && self.root.is_none()
    }

    pub(super) fn is_builtin(&self) -> bool {
        matches!(self.entry.transport, SourceTransport::Builtin { .. })
    }

    /// Fills in the variables of an entry for callers of a project. The error names the field and
    /// the variable.
    pub(super) fn fill(
        &self,
        variables: &Variables<'_>,
        root: Option<&str>,
    ) -> Result<FilledEntry, String> {
        match &self.entry.transport {
            SourceTransport::Stdio { .. } => {
                self.fill_command(variables, root).map(FilledEntry::Command)
            }
            SourceTransport::Remote { .. } => self.fill_remote(variables).map(FilledEntry::Remote),
            SourceTransport::Builtin { name, .. } => Err(format!("{name} is within the daemon")),
        }
    }

    fn fill_remote(&self, variables: &Variables<'_>) -> Result<FilledRemote, String> {
        let SourceTransport::Remote { kind, url, headers, headers_helper, .. } =
            &self.entry.transport
        else {
            return Err("it has no url".to_owned());
        };
        let mut used = Vec::new();
        let mut filled = |field: &str, text: &str| variables.fill(field, text, &mut used);
        let url =
            Url::parse(filled("url", url)?.trim()).map_err(|error| format!("url: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("url: must begin with http:// or https://".to_owned());
        }
        let mut fixed = HeaderMap::new();
        for (name, value) in headers {
            let field = format!("headers.{name}");
            let value = filled(&field, value)?;
            let name = HeaderName::try_from(name)
                .map_err(|_| format!("{field}: is no name of a header"))?;
            let mut value = HeaderValue::from_str(&value)
                .map_err(|_| format!("{field}: is no value of a header"))?;
            value.set_sensitive(true);
            fixed.insert(name, value);
        }
        let helper = headers_helper.clone().map(|command| {
            let mut env = inherited_variables(&self.entry, variables.env);
            env.push(("MCP_SERVER_NAME".to_owned(), self.key.name.clone()));
            env.push(("MCP_SERVER_URL".to_owned(), url.to_string()));
            // In the caller's project, a relative command would be a program of that project, which
            // nobody approved.
            HeadersHelper { command, env, cwd: self.base.clone() }
        });
        used.extend(variables.secrets.values().cloned());
        Ok(FilledRemote { kind: *kind, url, headers: fixed, helper, redactor: Redactor::new(used) })
    }

    fn fill_command(
        &self,
        variables: &Variables<'_>,
        root: Option<&str>,
    ) -> Result<FilledCommand, String> {
        let SourceTransport::Stdio { command, args, env: own, cwd } = &self.entry.transport else {
            return Err("it has no command".to_owned());
        };
        let given = *variables;
        let mut used: Vec<String> = given.secrets.values().cloned().collect();
        let mut filled = |field: &str, text: &str| given.fill(field, text, &mut used);
        let program = filled("command", command)?;
        let args = args.iter().enumerate().map(|(at, arg)| filled(&format!("args[{at}]"), arg));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        // Inherited values are the daemon's, and no secrets of the server.
        let mut variables = inherited_variables(&self.entry, variables.env);
        for (name, value) in own {
            let value = filled(&format!("env.{name}"), value)?;
            variables.retain(|(known, _)| known != name);
            variables.push((name.clone(), value));
        }
        let is_cwd_written_out =
            !self.is_of_plugin() && cwd.as_ref().is_some_and(|cwd| !cwd.contains('$'));
        let cwd = cwd.as_deref().map(|cwd| filled("cwd", cwd)).transpose()?;
        for name in &self.entry.env_inherit {
            used.extend(given.env_value(name));
        }
        let is_shared = self.entry.sharing == Sharing::Shared;
        let cwd = match (cwd, root) {
            (Some(cwd), _) => self.base.join(cwd),
            (None, Some(root)) if !self.is_of_plugin() && !is_shared => PathBuf::from(root),
            (None, _) => self.base.clone(),
        };
        // A name without a slash is looked up on the PATH. The working folder may be the caller's
        // project: a relative program found there would be one that nobody approved. A folder that
        // is written out is nobody's choice but the writer's.
        let folder = if is_cwd_written_out { &cwd } else { &self.base };
        let program = if program.contains('/') {
            folder.join(program).display().to_string()
        } else {
            program
        };
        if let Some(root) = root {
            variables.push(("CLAUDE_PROJECT_DIR".to_owned(), root.to_owned()));
        }
        Ok(FilledCommand { program, args, env: variables, cwd, redactor: Redactor::new(used) })
    }
}

pub(super) fn inherited_variables(entry: &SourceEntry, env: &Env) -> Vec<(String, String)> {
    let names = INHERITED.into_iter().chain(entry.env_inherit.iter().map(String::as_str));
    let value_of = |name: &str| env.os(name)?.to_str().map(str::to_owned);
    names.filter_map(|name| Some((name.to_owned(), value_of(name)?))).collect()
}

/// Deadline of the headers command.
const BOUND: Duration = Duration::from_secs(10);
/// Largest output, in bytes.
const MAX_OUTPUT: u64 = 64 * 1024;

#[derive(Debug, Clone)]
pub(super) struct HeadersHelper {
    pub(super) command: String,
    /// The whole environment of the command.
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: PathBuf,
}

/// Kills a process group on drop.
struct GroupEnd(Option<Pid>);

impl Drop for GroupEnd {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl HeadersHelper {
    /// Runs the command. Returns the headers and their values, which are secrets. The error quotes
    /// nothing of the output.
    pub(super) async fn run(&self) -> Result<(HeaderMap, Vec<String>), String> {
        let output = tokio::time::timeout(BOUND, self.output()).await;
        let output = output.map_err(|_| format!("it took longer than {} s", BOUND.as_secs()))??;
        headers_of(&output)
    }

    async fn output(&self) -> Result<Vec<u8>, String> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &self.command])
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.cwd)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
        // Until the process is reaped its pid is not reused; its group may outlive it and is killed
        // with it.
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = GroupEnd(pid);
        let stdout = child.stdout.take().ok_or("it has no output")?;
        let mut output = Vec::new();
        let read = stdout.take(MAX_OUTPUT + 1).read_to_end(&mut output).await;
        read.map_err(|error| format!("its output cannot be read: {error}"))?;
        if u64::try_from(output.len()).is_ok_and(|length| length > MAX_OUTPUT) {
            return Err("it printed more than 64 KiB".to_owned());
        }
        if let Some(pid) = pid {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let ended = move || waitid(WaitId::Pid(pid), options).map(drop);
            tokio::task::spawn_blocking(ended).await.ok();
        }
        drop(group);
        let status = child.wait().await.map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("it ended with {status}"));
        }
        Ok(output)
    }
}

fn headers_of(output: &[u8]) -> Result<(HeaderMap, Vec<String>), String> {
    let printed: Map<String, Value> = serde_json::from_slice(output)
        .map_err(|_| "it printed no JSON object of strings".to_owned())?;
    let (mut headers, mut values) = (HeaderMap::new(), Vec::new());
    for (name, value) in printed {
        let Value::String(value) = value else {
            return Err("it printed no JSON object of strings".to_owned());
        };
        let parsed = (HeaderName::try_from(&name), HeaderValue::from_str(&value));
        let (Ok(name), Ok(mut parsed)) = parsed else {
            return Err("it printed what is no header".to_owned());
        };
        parsed.set_sensitive(true);
        headers.insert(name, parsed);
        values.push(value);
    }
    Ok((headers, values))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn child_environment_has_only_inherited_and_given_variables() {
        let written = json!({
            "command": "${BIN:-cat}", "args": ["--key=${KEY}"], "env": { "TOKEN": "${KEY}", "PATH": "/own" },
            "env_inherit": ["EXTRA"],
        });
        let spec = SourceSpec::for_test("x", &written);
        let pairs =
            [("PATH", "/bin"), ("HOME", "/h"), ("KEY", "of-env"), ("EXTRA", "e"), ("OTHER", "o")];
        let env: Env = pairs.into_iter().collect();
        let secrets = BTreeMap::from([
            ("KEY".to_owned(), "secret1".to_owned()),
            ("PATH".to_owned(), "/no".to_owned()),
        ]);
        let variables = Variables { secrets: &secrets, withheld: &BTreeSet::new(), env: &env };
        let filled = spec.fill_command(&variables, None).expect("is filled");
        assert_eq!((filled.program.as_str(), filled.args[0].as_str()), ("cat", "--key=secret1"));
        let mut variables = filled.env.clone();
        variables.sort();
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            variables,
            [("EXTRA", "e"), ("HOME", "/h"), ("PATH", "/own"), ("TOKEN", "secret1")]
        );
        assert_eq!(filled.cwd, PathBuf::from("/base"));
        assert_eq!(filled.redactor.hide("--key=secret1"), "--key=***");
        let none: Env = [("PATH", "/bin")].into_iter().collect();
        let variables = Variables {
            secrets: &BTreeMap::new(),
            withheld: &BTreeSet::from(["KEY".to_owned()]),
            env: &none,
        };
        let problem = spec.fill(&variables, None).expect_err("KEY is missing");
        assert!(problem.contains("args[0]") && problem.contains("KEY"), "{problem}");
        assert!(problem.contains("is kept for another address or file"), "{problem}");
    }

    /// The working folder is the caller's project; the program is not looked up in it.
    #[test]
    fn relative_program_is_of_the_folder_of_its_file() {
        let env: Env = [("PATH", "/bin")].into_iter().collect();
        let nothing = BTreeMap::new();
        let variables = Variables { secrets: &nothing, withheld: &BTreeSet::new(), env: &env };
        for sharing in ["project", "session", "shared"] {
            for (written, program) in
                [("./srv.sh", "/base/./srv.sh"), ("../c.py", "/base/../c.py"), ("/srv", "/srv")]
            {
                let entry = json!({ "command": written, "sharing": sharing });
                let spec = SourceSpec::for_test("x", &entry);
                for root in [None, Some("/p1")] {
                    let filled = spec.fill_command(&variables, root).expect("is filled");
                    assert_eq!(filled.program, program, "{entry} {root:?}");
                }
            }
        }
        let written = json!({ "command": "./srv.sh", "cwd": "/srv/db" });
        let spec = SourceSpec::for_test("x", &written);
        let filled = spec.fill_command(&variables, Some("/p1")).expect("is filled");
        assert_eq!(filled.program, "/srv/db/./srv.sh");
        let spec = SourceSpec::for_test("x", &json!({ "command": "./srv.sh" }));
        let filled = spec.fill_command(&variables, Some("/p1")).expect("is filled");
        assert_eq!(filled.cwd, PathBuf::from("/p1"));
        let written = json!({
            "type": "http", "url": "http://127.0.0.1:1/", "headersHelper": "./h.sh",
            "sharing": "project",
        });
        let spec = SourceSpec::for_test("x", &written);
        let FilledEntry::Remote(filled) = spec.fill(&variables, Some("/p1")).expect("is filled")
        else {
            panic!("it is at a URL");
        };
        let helper = filled.helper.expect("it has one");
        assert_eq!(helper.cwd, PathBuf::from("/base"));
    }

    fn helper(command: &str) -> HeadersHelper {
        let env = vec![("PATH".to_owned(), std::env::var("PATH").unwrap_or_default())];
        HeadersHelper { command: command.to_owned(), env, cwd: PathBuf::from("/") }
    }

    #[tokio::test]
    async fn helper_output_becomes_headers_and_never_part_of_an_error() {
        let (headers, values) = helper(r#"echo '{"X-Key": "abc", "Authorization": "Bearer t"}'"#)
            .run()
            .await
            .expect("prints");
        assert_eq!((headers["x-key"].as_bytes(), values.len()), (b"abc".as_slice(), 2));
        for (command, problem) in [
            ("echo secret-words", "no JSON object"),
            (r#"echo '{"X": 1}'"#, "no JSON object"),
            (r#"printf '{"X": "secret-words\\n"}'"#, "no header"),
            ("echo secret-words; exit 3", "exit status: 3"),
            ("head -c 70000 /dev/zero", "64 KiB"),
        ] {
            let error = helper(command).run().await.expect_err(command);
            assert!(
                error.contains(problem) && !error.contains("secret-words"),
                "{command}: {error}"
            );
        }
    }
}
