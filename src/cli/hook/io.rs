//! What a hook reads and writes: the client's payload, the answer, and `hooks.log`.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde_json::Value;
use svc_model::{Clock as _, SystemClock, json_with_storable_texts};
use svc_sys::config::{Env, Paths};
use svc_sys::private_file;

/// Largest payload, in bytes.
const MAX_PAYLOAD: usize = 16 * 1024 * 1024;
/// A payload up to this size, in bytes, is not shortened.
const MAX_WHOLE: usize = 256 * 1024;
/// Bytes kept at the beginning and at the end of a long text: a test run ends with its result.
const HEAD: usize = 48 * 1024;
const TAIL: usize = 16 * 1024;

/// Reads standard input to its end, or until it is one whole JSON object: some clients leave it
/// open.
pub(super) fn read_payload() -> Result<Value, String> {
    read_from(io::stdin().lock())
}

fn read_from(mut input: impl io::Read) -> Result<Value, String> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let count = input.read(&mut chunk).map_err(|error| format!("standard input: {error}"))?;
        bytes.extend_from_slice(&chunk[..count]);
        let is_end = count == 0;
        if is_end && bytes.trim_ascii().is_empty() {
            return Err("standard input: is empty".to_owned());
        }
        if is_end || bytes.trim_ascii_end().ends_with(b"}") {
            // What is not UTF-8 becomes U+FFFD.
            let text = String::from_utf8_lossy(&bytes);
            match serde_json::from_str(&json_with_storable_texts(&text)) {
                Ok(value @ Value::Object(_)) => return Ok(shortened(value, bytes.len())),
                Ok(_) => return Err("standard input: is no JSON object".to_owned()),
                Err(error) if is_end => return Err(format!("standard input: {error}")),
                // The object is incomplete.
                Err(_) => {}
            }
        }
        if bytes.len() > MAX_PAYLOAD {
            return Err(format!("standard input: is longer than {MAX_PAYLOAD} bytes"));
        }
    }
}

fn shortened(mut value: Value, size: usize) -> Value {
    if size > MAX_WHOLE {
        cut(&mut value);
    }
    value
}

fn cut(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > HEAD + TAIL + 64 => {
            let head = text.floor_char_boundary(HEAD);
            let tail = text.ceil_char_boundary(text.len() - TAIL);
            *text = format!("{}\n[… {} bytes …]\n{}", &text[..head], tail - head, &text[tail..]);
        }
        Value::Array(items) => items.iter_mut().for_each(cut),
        Value::Object(members) => members.values_mut().for_each(cut),
        _ => {}
    }
}

/// Writes a line to standard output or standard error: one write, or none.
///
/// Fails also if nobody reads: an output that was closed when the program began is `/dev/null`.
pub(super) fn print_line(to: impl AsFd, line: &str) -> io::Result<()> {
    // The standard library's handle reports success for a closed output.
    let mut file = File::from(to.as_fd().try_clone_to_owned()?);
    let metadata = file.metadata()?;
    let is_null = metadata.file_type().is_char_device()
        && std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == metadata.rdev());
    if is_null {
        return Err(io::Error::other("nobody reads it"));
    }
    file.write_all(format!("{line}\n").as_bytes())
}

/// Size in bytes at which a new file begins; the previous file is kept as `hooks.log.1`.
const MAX_LOG: u64 = 256 * 1024;
/// Longest line, in characters.
const MAX_LINE: usize = 500;

/// `hooks.log`: failures of hooks, whose standard error nobody reads. It never has a payload's
/// text. `None` if the data folder is unknown.
#[derive(Debug, Clone)]
pub(super) struct HookLog(Option<PathBuf>);

impl HookLog {
    /// The log in this data folder, or else in the one that the environment names.
    pub(super) fn in_home(home: Option<&Path>) -> Self {
        let paths = Paths::resolve(&Env::from_process(), home);
        Self(paths.ok().map(|paths| paths.home.join("hooks.log")))
    }

    /// Adds a line. A failure to write it is ignored.
    pub(super) fn note(&self, topic: &str, problem: &str) {
        let Some(path) = &self.0 else { return };
        let text = format!("{topic}: {problem}");
        let text: String =
            text.chars().take(MAX_LINE).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = format!("{} {text}\n", SystemClock.now());
        if std::fs::metadata(path).is_ok_and(|file| file.len() > MAX_LOG) {
            std::fs::rename(path, path.with_extension("log.1")).ok();
        }
        let prepared = path.parent().map_or(Ok(()), private_file::prepare_home);
        prepared
            .and_then(|()| private_file::append(path))
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_keep_their_beginning_and_their_end() {
        let text = format!("begin{}1 failed", "ü".repeat(200_000));
        let value = shortened(
            json!({ "tool_response": { "stdout": text, "n": 1 }, "short": "s" }),
            400_000,
        );
        let kept = value["tool_response"]["stdout"].as_str().unwrap();
        assert!(kept.len() < 70_000 && kept.starts_with("begin") && kept.ends_with("1 failed"));
        assert_eq!(value["short"], "s");
    }

    #[test]
    fn invalid_utf8_and_nul_in_a_payload_become_replacement_characters() {
        let mut bytes = br#"{"prompt":"a"#.to_vec();
        bytes.extend([0xff, b'"', b'}']);
        assert_eq!(read_from(&bytes[..]).unwrap()["prompt"], "a\u{fffd}");
        // A client in JavaScript may cut a text within a character.
        for unstorable in [r#"{"prompt":"a\u0000"}"#, r#"{"prompt":"a\ud83d"}"#] {
            let payload = read_from(unstorable.as_bytes()).unwrap();
            assert_eq!(payload["prompt"], "a\u{fffd}");
        }
        for (wrong, problem) in [(" \n", "is empty"), ("[1]", "no JSON object"), ("{\"a", "EOF")] {
            assert!(read_from(wrong.as_bytes()).unwrap_err().contains(problem), "{wrong}");
        }
    }

    #[test]
    fn printing_to_a_closed_pipe_or_dev_null_fails() {
        let (reader, writer) = io::pipe().unwrap();
        print_line(&writer, "x").unwrap();
        drop(reader);
        assert!(print_line(&writer, "x").is_err());
        assert!(print_line(File::options().write(true).open("/dev/null").unwrap(), "x").is_err());
        assert!(print_line(File::open("/dev/null").unwrap(), "x").is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        print_line(file.as_file(), "x").unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "x\n");
    }

    #[test]
    fn hook_log_is_bounded_and_has_one_line_per_problem() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("home/hooks.log");
        let log = HookLog(Some(path.clone()));
        for _ in 0..1_200 {
            log.note("claude-code Stop", &"two\nlines ".repeat(60));
        }
        let size =
            |name: &str| std::fs::metadata(folder.path().join("home").join(name)).unwrap().len();
        assert!(size("hooks.log") <= MAX_LOG + 1_000 && size("hooks.log.1") <= MAX_LOG + 1_000);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.lines().all(|line| line.contains("claude-code Stop: two lines")), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= MAX_LINE + 30));
    }
}
