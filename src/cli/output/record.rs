//! One object: a line for each field.

use std::fmt::Write as _;

use serde_json::Value;
use svc_model::Timestamp;

use super::fitting::wrapped;
use super::relative_time::relative;
use super::screen::Screen;
use super::write::{block, json, plain, visible};

/// `key: value` lines for one object, with the keys padded; further lines of a value stand below
/// its first.
pub(crate) fn fields(pairs: &[(&str, String)]) -> anyhow::Result<()> {
    block(&layout(pairs))
}

/// The same, with lines that are no wider than the screen: broken between words.
pub(crate) fn wrapped_fields(screen: &Screen, pairs: &[(&str, String)]) -> anyhow::Result<()> {
    let room = screen.width.map(|width| usize::from(width).saturating_sub(label_width(pairs) + 1));
    let pairs: Vec<(&str, String)> =
        pairs.iter().map(|(key, value)| (*key, wrapped(value, room))).collect();
    fields(&pairs)
}

/// The fields of a JSON object that are set, in the order given, and then all others. On a screen a
/// time is followed by how long ago that is.
pub(crate) fn object(screen: &Screen, value: &Value, first: &[&str]) -> anyhow::Result<()> {
    let Some(map) = value.as_object() else {
        return json(value);
    };
    let named = first.iter().filter_map(|key| map.get_key_value(*key));
    let others = map.iter().filter(|(key, _)| !first.contains(&key.as_str()));
    let pairs: Vec<(&str, String)> = named
        .chain(others)
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.as_str(), with_distance(screen, key, plain(value))))
        .collect();
    fields(&pairs)
}

fn with_distance(screen: &Screen, key: &str, value: String) -> String {
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
