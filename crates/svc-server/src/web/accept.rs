//! `Accept` (RFC 9110, 12.5.1), parsed in one way by all adapters.
//!
//! No client is refused for a header that breaks the grammar: a range that does not parse matches
//! nothing, and a weight that does not parse is 1. Parameters of a range other than its weight are
//! ignored.

use http::{HeaderMap, header};

/// The media types that a client accepts. Borrows the headers and parses them on each call, so that
/// it allocates nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accept<'a>(&'a HeaderMap);

/// How specifically a range matches a media type. Of several ranges that match, the most specific
/// decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closeness {
    Anything,
    Family,
    Exact,
}

impl<'a> Accept<'a> {
    pub(crate) fn from_headers(headers: &'a HeaderMap) -> Self {
        Self(headers)
    }

    /// The weight of `media_type`, from 0 (excluded) to 1; `None` if no range matches it.
    pub(crate) fn weight(self, media_type: &str) -> Option<f32> {
        self.closest(media_type).map(|(_, weight)| weight)
    }

    /// Whether the client accepts `media_type` and not by `*/*` alone.
    pub(crate) fn names(self, media_type: &str) -> bool {
        self.closest(media_type)
            .is_some_and(|(closeness, weight)| closeness > Closeness::Anything && weight > 0.0)
    }

    /// Whether the client names `media_type` itself, without a wildcard, and with a weight no less
    /// than that of `default`.
    pub(crate) fn prefers(self, media_type: &str, default: &str) -> bool {
        match self.closest(media_type) {
            Some((Closeness::Exact, weight)) => {
                weight > 0.0 && self.weight(default).is_none_or(|other| weight >= other)
            }
            _ => false,
        }
    }

    fn closest(self, media_type: &str) -> Option<(Closeness, f32)> {
        let (family, _) = media_type.split_once('/')?;
        let values = self.0.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let matching = values.flat_map(|value| value.split(',')).filter_map(|item| {
            let mut parts = item.split(';').map(str::trim);
            let range = parts.next()?;
            let closeness = match range.split_once('/')? {
                _ if range.eq_ignore_ascii_case(media_type) => Closeness::Exact,
                ("*", "*") => Closeness::Anything,
                (of, "*") if of.eq_ignore_ascii_case(family) => Closeness::Family,
                _ => return None,
            };
            Some((closeness, parts.find_map(weight_of).unwrap_or(1.0)))
        });
        // A range may occur several times, with other parameters: the greatest weight counts.
        matching.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
    }
}

/// The value of a parameter that is a weight (RFC 9110, 12.4.2).
fn weight_of(parameter: &str) -> Option<f32> {
    let weight = parameter.strip_prefix(['q', 'Q'])?.strip_prefix('=')?;
    weight.parse().ok().filter(|weight| (0.0..=1.0).contains(weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = "application/json";
    const EVENTS: &str = "text/event-stream";

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::ACCEPT, value.parse().unwrap())).collect()
    }

    #[test]
    fn most_specific_range_decides_and_weight_zero_excludes() {
        for (values, json, events) in [
            (&[][..], None, None),
            (&["application/json"], Some(1.0), None),
            (&["application/json, text/event-stream"], Some(1.0), Some(1.0)),
            (&["application/json", "TEXT/Event-Stream;q=0.5"], Some(1.0), Some(0.5)),
            (&["*/*"], Some(1.0), Some(1.0)),
            (&["*/*;q=0.1, text/*;q=0.7, text/event-stream;q=0"], Some(0.1), Some(0.0)),
            (&["text/event-stream;q=0, text/*, */*;q=0"], Some(0.0), Some(0.0)),
            (&["application/* ; Q=0.25 , text/plain"], Some(0.25), None),
            (&["application/json;version=2;q=0.2, application/json;q=0.8"], Some(0.8), None),
            // A header that breaks the grammar excludes nothing.
            (&["application/json;q=x, *;q=0, text, , text/event-stream;q=7"], Some(1.0), Some(1.0)),
            (&["application/json;q=NaN"], Some(1.0), None),
        ] {
            let headers = headers(values);
            let accept = Accept::from_headers(&headers);
            assert_eq!(accept.weight(JSON), json, "{values:?}");
            assert_eq!(accept.weight(EVENTS), events, "{values:?}");
        }
    }

    #[test]
    fn named_type_is_preferred_if_its_weight_is_no_less_than_the_default() {
        for (value, preferred) in [
            ("text/event-stream", true),
            ("application/json, text/event-stream", true),
            ("text/event-stream, */*;q=0.1", true),
            ("text/event-stream;q=0.5", true),
            ("*/*", false),
            ("text/*", false),
            ("text/event-stream;q=0", false),
            ("text/event-stream;q=0.5, application/json", false),
            ("text/event-stream;q=0.5, */*", false),
            ("application/json", false),
        ] {
            let headers = headers(&[value]);
            assert_eq!(Accept::from_headers(&headers).prefers(EVENTS, JSON), preferred, "{value}");
        }
    }
}
