//! One object, a line for each member.

use std::fmt::Write as _;

use serde_json::Value;
use svc_model::Timestamp;

use super::fitting::wrapped;
use super::relative_time::relative;
use super::screen::Screen;
use super::write::{block, json, plain, visible};

/// `key: value` lines with padded keys; further lines of a value are indented below its first.
pub(crate) fn fields(pairs: &[(&str, String)]) -> anyhow::Result<()> {
    block(&layout(pairs))
}

/// Like `fields`, with values that are wrapped at the width of the screen.
pub(crate) fn wrapped_fields(screen: &Screen, pairs: &[(&str, String)]) -> anyhow::Result<()> {
    let room = screen.width.map(|width| usize::from(width).saturating_sub(label_width(pairs) + 1));
    let pairs: Vec<(&str, String)> =
        pairs.iter().map(|(key, value)| (*key, wrapped(value, room))).collect();
    fields(&pairs)
}

/// The members of a JSON object that are set: first those of `first`, then all others. On a screen
/// a time is followed by the relative time.
pub(crate) fn object(screen: &Screen, value: &Value, first: &[&str]) -> anyhow::Result<()> {
    let Some(map) = value.as_object() else {
        return json(value);
    };
    let named = first.iter().filter_map(|key| map.get_key_value(*key));
    let others = map.iter().filter(|(key, _)| !first.contains(&key.as_str()));
    let pairs: Vec<(&str, String)> = named
        .chain(others)
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.as_str(), with_relative_time(screen, key, plain(value))))
        .collect();
    fields(&pairs)
}

fn with_relative_time(screen: &Screen, key: &str, value: String) -> String {
    let is_time = screen.is_for_people()
        && !screen.utc
        && (key.ends_with("_at") || matches!(key, "timestamp" | "last_seen" | "started" | "ended"));
    match Timestamp::parse(&value).filter(|_| is_time) {
        Some(at) => format!("{value} ({})", relative(at, screen.now)),
        None => value,
    }
}

fn label_width(pairs: &[(&str, String)]) -> usize {
    pairs.iter().map(|(key, _)| key.len()).max().unwrap_or(0) + 1
}

fn layout(pairs: &[(&str, String)]) -> String {
    let width = label_width(pairs);
    let mut text = String::new();
    for (key, value) in pairs {
        let mut label = format!("{}:", visible(key));
        for part in value.split('\n') {
            writeln!(text, "{label:width$} {}", visible(part))
                .expect("writing to a string does not fail");
            label.clear();
        }
    }
    text
}
