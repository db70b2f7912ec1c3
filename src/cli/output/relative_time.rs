//! Relative times.

use svc_model::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// `at` relative to `now`: "3 min ago", "in 2 h"; the date beyond 30 days.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    let millis = now.as_millis().saturating_sub(at.as_millis());
    let seconds = (millis / 1000).abs();
    let length = match seconds {
        0..5 => return "now".to_owned(),
        5..MINUTE => format!("{seconds} s"),
        MINUTE..HOUR => format!("{} min", seconds / MINUTE),
        HOUR..DAY => format!("{} h", seconds / HOUR),
        _ if seconds < 2 * DAY => "1 day".to_owned(),
        _ if seconds <= 30 * DAY => format!("{} days", seconds / DAY),
        _ => return at.to_string().chars().take(10).collect(),
    };
    if millis < 0 { format!("in {length}") } else { format!("{length} ago") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_times_by_table() {
        let now = Timestamp::parse("2026-03-31T12:00:00Z").expect("a time");
        for (at, is) in [
            ("2026-03-31T12:00:00Z", "now"),
            ("2026-03-31T11:59:56Z", "now"),
            ("2026-03-31T11:59:55Z", "5 s ago"),
            ("2026-03-31T11:59:01Z", "59 s ago"),
            ("2026-03-31T11:59:00Z", "1 min ago"),
            ("2026-03-31T11:00:01Z", "59 min ago"),
            ("2026-03-31T11:00:00Z", "1 h ago"),
            ("2026-03-30T12:00:01Z", "23 h ago"),
            ("2026-03-30T12:00:00Z", "1 day ago"),
            ("2026-03-29T12:00:00Z", "2 days ago"),
            ("2026-03-01T12:00:00Z", "30 days ago"),
            ("2026-03-01T11:59:00Z", "2026-03-01"),
            ("2026-03-31T12:03:00Z", "in 3 min"),
            ("2027-03-31T12:03:00Z", "2027-03-31"),
        ] {
            assert_eq!(relative(Timestamp::parse(at).expect("a time"), now), is, "{at}");
        }
    }
}
