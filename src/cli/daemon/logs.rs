//! `svc logs`: the log file of the daemon in the background, across rotations.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use svc_sys::bounded_file;
use tokio::time::sleep;

use super::super::output::{self, Screen, Style, clock, plain, visible};
use super::super::{Context, ExitResult};

const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Args)]
pub(crate) struct LogsArgs {
    /// Print new lines as they come
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines to print
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    lines: usize,
}

pub(crate) async fn logs(context: &Context, args: &LogsArgs) -> ExitResult {
    let path = &context.paths.log;
    let mut file = match bounded_file::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "there is no log at {}; `svc start` writes one, `svc serve` logs to its terminal",
                path.display()
            )
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    rest.drain(..start_of_last(&rest, args.lines));
    loop {
        copy(context, &mut file, &mut rest)?;
        if !args.follow {
            break;
        }
        sleep(POLL).await;
        if let Some(newer) = rotated(path, &mut file) {
            // Lines that were written between the last poll and the rotation.
            copy(context, &mut file, &mut rest)?;
            file = newer;
        }
    }
    if !rest.is_empty() {
        show(context, &rest)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints every complete line. An incomplete one stays in `rest`.
fn copy(context: &Context, file: &mut File, rest: &mut Vec<u8>) -> Result<()> {
    file.read_to_end(rest)?;
    if let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') {
        let lines: Vec<u8> = rest.drain(..=end).collect();
        for line in lines[..end].split(|byte| *byte == b'\n') {
            show(context, line)?;
        }
    }
    Ok(())
}

fn show(context: &Context, line: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(line);
    if !context.json {
        let line = readable(&context.screen.at_present(), &text);
        return output::styled_line(&line.unwrap_or_else(|| visible(&text)));
    }
    match entry(&text) {
        Some(entry) => output::ndjson(&entry),
        None => output::ndjson(&json!({ "line": text })),
    }
}

/// The line itself if it is an object, as the log in JSON has them.
fn entry(line: &str) -> Option<&RawValue> {
    serde_json::from_str::<&RawValue>(line).ok().filter(|entry| entry.get().starts_with('{'))
}

/// The file that has the name now, if the log was replaced or truncated.
fn rotated(path: &Path, file: &mut File) -> Option<File> {
    let newer = bounded_file::open_regular(path).ok()?;
    let (old, new) = (file.metadata().ok()?, newer.metadata().ok()?);
    let is_same = old.ino() == new.ino()
        && old.dev() == new.dev()
        && new.len() >= file.stream_position().ok()?;
    (!is_same).then_some(newer)
}

/// Where the last `lines` lines of a text begin.
fn start_of_last(text: &[u8], lines: usize) -> usize {
    // The line feed at the end of the file begins no line.
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match lines.checked_sub(1) {
        None => text.len(),
        Some(others) => ends.nth(others).map_or(0, |(at, _)| at + 1),
    }
}

/// The line for people; `None` if it is no JSON document of the log.
fn readable(screen: &Screen, line: &str) -> Option<String> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let (at, level) = (entry.get("timestamp")?.as_str()?, entry.get("level")?.as_str()?);
    let fields = entry.get("fields")?.as_object()?;
    let message = fields.get("message").map(plain).unwrap_or_default();
    let mut text = visible(&message);
    let spans = entry.get("spans").and_then(Value::as_array).into_iter().flatten();
    let of_spans = spans.filter_map(Value::as_object).flatten();
    for (key, value) in fields.iter().filter(|(key, _)| *key != "message").chain(of_spans) {
        text.extend(["  ", &visible(key), "=", &visible(&plain(value))]);
    }
    let style = match level {
        "ERROR" => Style::Bad,
        "WARN" => Style::Busy,
        "INFO" => Style::Good,
        _ => Style::Dim,
    };
    let level = visible(&format!("{level:<5}"));
    let level = if screen.color { style.paint(&level) } else { level };
    Some(format!("{}  {level}  {text}", clock(screen, &visible(at))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_finds_the_last_lines_of_any_file() {
        let cases: &[(&str, usize, &str)] = &[
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\n", 9, "a\nb\n"),
            ("a\nb\n", 0, ""),
            ("", 3, ""),
            ("\n\n\n", 2, "\n\n"),
        ];
        for (text, lines, expected) in cases {
            let start = start_of_last(text.as_bytes(), *lines);
            assert_eq!(&text[start..], *expected, "{lines} of {text:?}");
        }
    }

    #[test]
    fn entry_in_json_is_not_put_into_another() {
        let line = r#" {"timestamp":"2026-03-31T11:47:10Z","level":"INFO"}"#;
        assert_eq!(entry(line).map(RawValue::get), Some(line.trim()));
        for other in ["2026-03-31T11:47:10Z  INFO svc: ready", "[1]", "7", "{\"a\":", ""] {
            assert!(entry(other).is_none(), "{other}");
        }
    }

    #[test]
    fn lines_by_table() {
        let screen = Screen::for_tests(Some(80));
        let ready = r#"{"timestamp":"2026-03-31T11:47:10.896770Z","level":"INFO","fields":{"message":"ready","url":"http://x"},"target":"svc::daemon","spans":[{"id":7,"name":"request"}]}"#;
        for (line, shown) in [
            (ready, "11:47:10  INFO   ready  url=http://x  id=7  name=request"),
            (
                r#"{"timestamp":"2026-03-30T11:47:10Z","level":"WARN","fields":{"message":"a\u001b[1m\nb"}}"#,
                "2026-03-30 11:47:10  WARN   a␛[1m␊b",
            ),
            ("2026-03-31T11:47:10Z  INFO svc: ready", "2026-03-31T11:47:10Z  INFO svc: ready"),
            ("{\"a\":1}\u{1b}", "{\"a\":1}␛"),
        ] {
            assert_eq!(readable(&screen, line).unwrap_or_else(|| visible(line)), shown);
        }
    }
}
