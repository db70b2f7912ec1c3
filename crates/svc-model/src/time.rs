//! Time as the daemon keeps it: unix milliseconds in tables, RFC 3339 UTC with three digits on the
//! wire.

use std::{
    fmt,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// An instant, in milliseconds since the unix epoch.
///
/// A number in the database, because text with a variable fraction sorts wrongly; RFC 3339
/// everywhere else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The instant `duration` later; stops at the end of time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// The instant `duration` earlier; stops at the beginning of time.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later, as after a clock was set back.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses RFC 3339 with any offset and fraction. What is finer than a millisecond is cut off.
    pub fn parse(text: &str) -> Option<Self> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).ok().map(Self)
    }

    /// Appends the text form to `out`.
    pub fn push_to(self, out: &mut String) {
        out.push_str(std::str::from_utf8(&self.written()).unwrap_or_default());
    }

    /// RFC 3339, in ASCII.
    fn written(self) -> [u8; 24] {
        let fraction = u16::try_from(self.0.rem_euclid(1000)).unwrap_or_default();
        // RFC 3339 has no form of years outside of 0 to 9999, which only a broken row can have.
        let at = OffsetDateTime::from_unix_timestamp(self.0.div_euclid(1000))
            .ok()
            .filter(|at| at.year() >= 0)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (hour, minute, second) = at.to_hms();
        let (year, month) = (u16::try_from(at.year()).unwrap_or_default(), u8::from(at.month()));
        // Every list is full of times, and the formatter takes ten times as long.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        for (offset, width, number) in [
            (0, 4, year),
            (5, 2, month.into()),
            (8, 2, at.day().into()),
            (11, 2, hour.into()),
            (14, 2, minute.into()),
            (17, 2, second.into()),
            (20, 3, fraction),
        ] {
            let mut rest = number;
            for digit in text[offset..offset + width].iter_mut().rev() {
                *digit += u8::try_from(rest % 10).unwrap_or_default();
                rest /= 10;
            }
        }
        text
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.written()).unwrap_or_default())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.written()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom("expected an RFC 3339 time such as 2026-01-31T12:00:00.000Z")
        })
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "RFC 3339, UTC, milliseconds"
        })
    }
}

/// Where a service gets the time from. An argument, so that a test can set it.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Timestamp;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Timestamp(millis(since_epoch))
    }
}

/// A clock that stands still until it is set. For tests.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub const fn new(at: Timestamp) -> Self {
        Self(AtomicI64::new(at.0))
    }

    /// Sets the time, which may be earlier than before.
    pub fn set(&self, at: Timestamp) {
        self.0.store(at.0, Ordering::SeqCst);
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_three_digits_and_reads_any_offset() {
        for (text, millis, shown) in [
            ("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00.000Z"),
            ("2026-11-20T13:36:00.5Z", 1_795_181_760_500, "2026-11-20T13:36:00.500Z"),
            ("2026-11-20T15:36:00.1234+02:00", 1_795_181_760_123, "2026-11-20T13:36:00.123Z"),
            ("1969-12-31T23:59:59.999Z", -1, "1969-12-31T23:59:59.999Z"),
        ] {
            let at = Timestamp::parse(text).unwrap();
            assert_eq!((at.as_millis(), at.to_string().as_str()), (millis, shown), "{text}");
        }
        for text in ["", "yesterday", "2026-11-20", "2026-11-20T13:36:00"] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_clock_set_back_gives_no_negative_age() {
        let (early, late) = (Timestamp::from_millis(5), Timestamp::from_millis(9));
        assert_eq!(late.since(early), Duration::from_millis(4));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
