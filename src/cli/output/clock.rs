//! The time of day of an event in a feed. Its lines stay on the screen, where "3 min ago" would
//! become wrong.

use svc_model::Timestamp;
use time::OffsetDateTime;

use super::screen::Screen;
use super::style::Style;

/// Formats `at` (RFC 3339) for the beginning of a line: on a screen the local time, with the day if
/// it is not today; unchanged for a program and with `--utc`.
pub(crate) fn clock(screen: &Screen, at: &str) -> String {
    let local = |at: Timestamp| {
        let seconds = at.as_millis().div_euclid(1000);
        Some(OffsetDateTime::from_unix_timestamp(seconds).ok()?.to_offset(screen.offset))
    };
    if !screen.is_for_people() || screen.utc {
        return at.to_owned();
    }
    let Some((at, now)) = Timestamp::parse(at).and_then(local).zip(local(screen.now)) else {
        return at.to_owned();
    };
    let (hour, minute, second) = at.to_hms();
    let time = format!("{hour:02}:{minute:02}:{second:02}");
    let day = (at.date() != now.date()).then(|| format!("{} ", at.date()));
    let text = format!("{}{time}", day.unwrap_or_default());
    if screen.color { Style::Dim.paint(&text) } else { text }
}

#[cfg(test)]
mod tests {
    use time::UtcOffset;

    use super::*;

    #[test]
    fn clock_shows_local_time() {
        let now = Timestamp::parse("2026-03-31T23:30:00Z").expect("a time");
        let offset = UtcOffset::from_hms(2, 0, 0).expect("an offset");
        let screen = Screen { width: Some(80), color: false, utc: false, now, offset };
        assert_eq!(clock(&screen, "2026-03-31T23:29:58.123Z"), "01:29:58");
        assert_eq!(clock(&screen, "2026-03-31T11:29:58.123Z"), "2026-03-31 13:29:58");
        assert_eq!(clock(&screen, "no time"), "no time");
        let at = "2026-03-31T11:29:58.123Z";
        assert_eq!(clock(&Screen { utc: true, ..screen }, at), at);
        assert_eq!(clock(&Screen { width: None, ..screen }, at), at);
    }
}
