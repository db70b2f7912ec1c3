//! The head of a response that we write ourselves.

use std::cell::RefCell;

use http::{StatusCode, header, response::Parts};
use time::{OffsetDateTime, macros::format_description};

use crate::domain::Timestamp;

/// How long the body is.
#[derive(Debug, Clone, Copy)]
pub(super) enum BodyLength {
    /// So many bytes.
    Known(usize),
    /// It comes in chunks.
    Chunked,
}

/// The head of a response (RFC 9112, 4 and 6.1). `closes` is whether the connection ends with it.
pub(super) fn response_head(
    response: &Parts,
    now: Timestamp,
    length: BodyLength,
    closes: bool,
) -> Vec<u8> {
    let room = match length {
        BodyLength::Known(bytes) => bytes,
        BodyLength::Chunked => 0,
    };
    let mut text = Vec::with_capacity(256 + room);
    let status = response.status;
    text.extend_from_slice(b"HTTP/1.1 ");
    text.extend_from_slice(status.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    text.extend_from_slice(b"\r\n");
    let mut push = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            text.extend_from_slice(part);
        }
    };
    for (name, value) in &response.headers {
        push(name.as_str(), value.as_bytes());
    }
    match length {
        BodyLength::Chunked => push(header::TRANSFER_ENCODING.as_str(), b"chunked"),
        BodyLength::Known(_)
            if status == StatusCode::NO_CONTENT
                || response.headers.contains_key(header::CONTENT_LENGTH) => {}
        BodyLength::Known(bytes) => {
            push(header::CONTENT_LENGTH.as_str(), itoa::Buffer::new().format(bytes).as_bytes());
        }
    }
    if closes {
        push(header::CONNECTION.as_str(), b"close");
    }
    with_date(now, |date| push(header::DATE.as_str(), date.as_bytes()));
    text.extend_from_slice(b"\r\n");
    text
}

/// Gives the date as RFC 9110, 5.6.7, has it. It is made once a second.
fn with_date(now: Timestamp, push: impl FnOnce(&str)) {
    thread_local! {
        static DATE: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let second = now.as_millis().div_euclid(1000);
    DATE.with_borrow_mut(|(of, text)| {
        if *of != second {
            (*of, *text) = (second, date(second));
        }
        push(text);
    });
}

fn date(second: i64) -> String {
    let format = format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    let at = OffsetDateTime::from_unix_timestamp(second);
    at.ok().and_then(|at| at.format(format).ok()).unwrap_or_default()
}
