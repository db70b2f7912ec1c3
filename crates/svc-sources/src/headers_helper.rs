//! A command that prints headers for a server at a URL.

use std::{path::PathBuf, process::Stdio, time::Duration};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::{Map, Value};
use tokio::{io::AsyncReadExt as _, process::Command};

/// Deadline of the command.
const BOUND: Duration = Duration::from_secs(10);
/// Largest output, in bytes.
const MAX_OUTPUT: u64 = 64 * 1024;

#[derive(Debug, Clone)]
pub(super) struct HeadersHelper {
    pub(super) command: String,
    /// Its whole environment.
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
    use super::*;

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
