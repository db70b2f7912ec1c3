//! A line of the daemon's log for people: time, level, message and fields.

use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::output::{Screen, Style, clock, plain, visible};

/// The line for people. A line that is no JSON document of the log stays unchanged.
pub(super) fn readable(screen: &Screen, line: &str) -> String {
    let Some(words) = words(screen, line) else { return visible(line) };
    words
}

fn words(screen: &Screen, line: &str) -> Option<String> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let (at, level) = (entry.get("timestamp")?.as_str()?, entry.get("level")?.as_str()?);
    let fields = entry.get("fields")?.as_object()?;
    let message = fields.get("message").map(plain).unwrap_or_default();
    let mut text = visible(&message);
    for (key, value) in fields.iter().filter(|(key, _)| *key != "message") {
        write!(text, "  {}={}", visible(key), visible(&plain(value)))
            .expect("writing to a string does not fail");
    }
    for span in entry.get("spans").and_then(Value::as_array).into_iter().flatten() {
        for (key, value) in span.as_object().into_iter().flatten() {
            write!(text, "  {}={}", visible(key), visible(&plain(value)))
                .expect("writing to a string does not fail");
        }
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
    use svc_model::Timestamp;
    use time::UtcOffset;

    use super::*;

    #[test]
    fn lines_by_table() {
        let now = Timestamp::parse("2026-03-31T12:00:00Z").expect("a time");
        let screen =
            Screen { width: Some(80), color: false, utc: false, now, offset: UtcOffset::UTC };
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
            assert_eq!(readable(&screen, line), shown);
        }
    }
}
