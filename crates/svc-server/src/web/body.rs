//! Reads request bodies, with bounds.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use svc_model::{NUL_REFUSED, json_has_nul, json_weight, limits};
use tokio::sync::Semaphore;

use super::{Code, Problem};

/// How much of a body that is too large is still read, as a multiple of the limit: a client that is
/// busy sending would not see the response.
const DRAINED: usize = 4;

/// A body as text. The whole text is checked, since a parser skips some strings without decoding
/// them.
pub(crate) fn text_of(bytes: &[u8]) -> Result<&str, Problem> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    if is_too_heavy(text) {
        return Err(Problem::new(Code::PayloadTooLarge, TOO_HEAVY));
    }
    if json_has_nul(text) {
        let value = serde_json::from_str(text).unwrap_or_default();
        return Err(Problem::invalid(field_with_nul(&value).unwrap_or_default(), NUL_REFUSED));
    }
    Ok(text)
}

/// The path of the first string that contains U+0000, in the form that errors use.
fn field_with_nul(value: &Value) -> Option<String> {
    let below = |name: String, value| {
        let rest = field_with_nul(value)?;
        let dot = if rest.is_empty() || rest.starts_with('[') { "" } else { "." };
        Some(format!("{name}{dot}{rest}"))
    };
    match value {
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| below(format!("[{at}]"), item))
        }
        Value::Object(members) => members.iter().find_map(|(name, value)| {
            if name.contains('\0') { Some(name.clone()) } else { below(name.clone(), value) }
        }),
        _ => None,
    }
}

/// The message for a body whose values would need too much memory.
pub(crate) const TOO_HEAVY: &str =
    "the body has too many values; nothing of it was stored: send it in several requests";

/// Whether the values of a JSON text would need more memory than a request may use.
pub(crate) fn is_too_heavy(text: &str) -> bool {
    text.len() > limits::JSON_UNWEIGHED_BYTES && json_weight(text) > limits::JSON_WEIGHT_BYTES
}

/// Refuses a body whose `Content-Type` is not JSON. Parameters are allowed (RFC 9110 8.3), and
/// `+json` counts as JSON.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json")
        || (essence.len() > 5 && essence.to_ascii_lowercase().ends_with("+json"))
    {
        return Ok(());
    }
    let why = "the body must be JSON: Content-Type: application/json";
    Err(Problem::new(Code::UnsupportedMediaType, why))
}

/// Bounds how many large bodies are parsed at once outside the runtime's threads.
static LARGE_BODIES: Semaphore = Semaphore::const_new(2);

/// Parses a body into values. A large one is parsed on a blocking thread: on a runtime with one
/// thread all other requests would wait for it.
pub(crate) async fn parse_body<T: Send + 'static>(
    body: Bytes,
    parse: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> T {
    if body.len() <= limits::BODY_AT_ONCE_BYTES {
        return parse(&body);
    }
    let _turn = LARGE_BODIES.acquire().await.expect("is never closed");
    match tokio::task::spawn_blocking(move || parse(&body)).await {
        Ok(parsed) => parsed,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Reads a body up to `limit` bytes. Fails if nothing arrives for `stall`.
pub(crate) async fn read<B>(mut body: B, limit: usize, stall: Duration) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: std::fmt::Display> + Unpin,
{
    let announced = body.size_hint().lower();
    let too_large = || {
        let why = format!("the body has more than {limit} bytes; nothing of it was stored");
        Problem::new(Code::PayloadTooLarge, why)
    };
    let drained = limit.saturating_mul(DRAINED);
    if announced > drained as u64 {
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut len = 0;
    loop {
        // Most bodies arrive with their heads and need no timer.
        let frame = match body.frame().now_or_never() {
            Some(frame) => Ok(frame),
            None => tokio::time::timeout(stall, body.frame()).await,
        };
        let frame = match frame {
            Err(_) => {
                let why = format!("nothing more of the body came for {} s", stall.as_secs_f32());
                return Err(Problem::new(Code::RequestTimeout, why));
            }
            Ok(None) => break,
            Ok(Some(Err(error))) => {
                return Err(Problem::malformed(format!("the body broke off: {error}")));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        len += data.len();
        if len > limit || announced > limit as u64 {
            if len > drained {
                break;
            }
            continue;
        }
        // A small body arrives in one chunk, which is used without a copy.
        match first {
            None => first = Some(data),
            Some(ref first) => {
                if rest.is_empty() {
                    rest.extend_from_slice(first);
                }
                rest.extend_from_slice(&data);
            }
        }
    }
    if len > limit || announced > limit as u64 {
        return Err(too_large());
    }
    Ok(if rest.is_empty() { first.unwrap_or_default() } else { rest.freeze() })
}
