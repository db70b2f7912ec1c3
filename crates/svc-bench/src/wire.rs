//! HTTP/1.1 and server-sent events as bytes: the subset that is needed to load a known server.
//!
//! Uses no client library, which would need more of the two cores than the measured server.

#[derive(Debug, thiserror::Error)]
#[error("the server answered: {0}")]
pub(crate) struct BadAnswer(pub(crate) String);

impl BadAnswer {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(String::from_utf8_lossy(&bytes[..bytes.len().min(600)]).into_owned())
    }
}

/// The length of the response at the start of `bytes`, once it is complete. Fails if its status is
/// no success.
pub(crate) fn http_answer(bytes: &[u8]) -> Result<Option<usize>, BadAnswer> {
    let Some(head) = head_end(bytes) else {
        return Ok(None);
    };
    let body = match content_length(&bytes[..head]) {
        Some(body) => Some(body).filter(|body| bytes.len() >= head + body),
        None => chunks_end(&bytes[head..])?,
    };
    let Some(body) = body else { return Ok(None) };
    if !bytes.starts_with(b"HTTP/1.1 2") {
        return Err(BadAnswer::from_bytes(bytes));
    }
    Ok(Some(head + body))
}

/// The length of a chunked body, once it is complete.
fn chunks_end(body: &[u8]) -> Result<Option<usize>, BadAnswer> {
    let mut at = 0;
    loop {
        let Some(line) = body[at..].windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&body[at..at + line])
            .ok()
            .and_then(|size| usize::from_str_radix(size, 16).ok())
            .ok_or_else(|| BadAnswer::from_bytes(body))?;
        at += line + 2 + size + 2;
        if body.len() < at {
            return Ok(None);
        }
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

pub(crate) fn body(answer: &[u8]) -> &[u8] {
    &answer[head_end(answer).unwrap_or(answer.len())..]
}

pub(crate) fn header<'a>(answer: &'a [u8], name: &str) -> Option<&'a str> {
    let head = std::str::from_utf8(&answer[..head_end(answer)?]).ok()?;
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(it, _)| it.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\r\ncontent-length:";
    let at = head.windows(NAME.len()).position(|name| name.eq_ignore_ascii_case(NAME))?;
    let value = head[at + NAME.len()..].split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Parses the body of an endless response in pieces, chunked or not. Stores nothing.
#[derive(Debug, Default)]
pub(crate) struct Body {
    state: State,
    /// Bytes of the body so far, without the framing of chunks.
    pub(crate) payload: u64,
}

#[derive(Debug)]
enum State {
    Head(Vec<u8>),
    Plain,
    Size(u64),
    Data(u64),
    DataEnd,
    Over,
}

impl Default for State {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

impl Body {
    pub(crate) fn begun(&self) -> bool {
        !matches!(self.state, State::Head(_))
    }

    /// Parses the next bytes and passes the bytes of the body to `see`.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut see: impl FnMut(&[u8]),
    ) -> Result<(), BadAnswer> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Head(head) => {
                    let before = head.len();
                    head.extend_from_slice(bytes);
                    let Some(end) = head_end(head) else {
                        return Ok(());
                    };
                    if !head.starts_with(b"HTTP/1.1 200") {
                        return Err(BadAnswer::from_bytes(head));
                    }
                    bytes = &bytes[end - before..];
                    let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
                    let chunked = text.contains("transfer-encoding: chunked");
                    self.state = if chunked { State::Size(0) } else { State::Plain };
                }
                State::Plain => {
                    self.payload += bytes.len() as u64;
                    see(bytes);
                    return Ok(());
                }
                State::Size(size) => {
                    let byte = bytes[0];
                    bytes = &bytes[1..];
                    match byte {
                        b'\n' if *size == 0 => self.state = State::Over,
                        b'\n' => self.state = State::Data(*size),
                        b'\r' => {}
                        digit => {
                            let digit = char::from(digit)
                                .to_digit(16)
                                .ok_or_else(|| BadAnswer::from_bytes(bytes))?;
                            *size = *size * 16 + u64::from(digit);
                        }
                    }
                }
                State::Data(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    let (data, rest) = bytes.split_at(here);
                    bytes = rest;
                    self.payload += here as u64;
                    *left -= here as u64;
                    if *left == 0 {
                        self.state = State::DataEnd;
                    }
                    see(data);
                }
                State::DataEnd => {
                    if bytes[0] == b'\n' {
                        self.state = State::Size(0);
                    }
                    bytes = &bytes[1..];
                }
                State::Over => return Ok(()),
            }
        }
        Ok(())
    }
}

/// The lengths of one stream's frames. All frames have data of equal length and differ only in the
/// digits of the id, so frames are counted by arithmetic: scanning gigabytes a second would use up
/// the server's core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameSize {
    /// The length without the id's digits.
    pub(crate) fixed: u64,
}

impl FrameSize {
    /// Measures a frame with a known `id`.
    pub(crate) fn measure(frame_len: usize, id: u64) -> Self {
        Self { fixed: frame_len as u64 - digits(id) }
    }

    pub(crate) fn len(self, id: u64) -> u64 {
        self.fixed + digits(id)
    }

    /// The number of whole frames in `bytes`, if the first frame has the id `first`.
    pub(crate) fn frames_in(self, first: u64, bytes: u64) -> u64 {
        let (mut id, mut left) = (first, bytes);
        loop {
            let (len, room) = (self.len(id), room(id));
            if left < len * room {
                return id - first + left / len;
            }
            left -= len * room;
            id += room;
        }
    }

    /// The length of `count` frames, if the first frame has the id `first`.
    pub(crate) fn bytes_of(self, first: u64, count: u64) -> u64 {
        let (mut id, mut left, mut bytes) = (first, count, 0);
        while left > 0 {
            let here = left.min(room(id));
            bytes += here * self.len(id);
            id += here;
            left -= here;
        }
        bytes
    }
}

fn digits(id: u64) -> u64 {
    u64::from(id.checked_ilog10().unwrap_or(0)) + 1
}

/// Number of ids from `id` on that have the same number of digits.
fn room(id: u64) -> u64 {
    10_u64.saturating_pow(u32::try_from(digits(id)).unwrap_or(u32::MAX)).saturating_sub(id).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_response_has_no_length() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for cut in 0..answer.len() {
            assert!(http_answer(&answer[..cut]).expect("is fine").is_none(), "{cut}");
        }
        assert_eq!(http_answer(answer).expect("is fine"), Some(answer.len()));
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n";
        for cut in 0..answer.len() {
            assert!(http_answer(&answer[..cut]).expect("is fine").is_none(), "{cut}");
        }
        assert_eq!(http_answer(answer).expect("is fine"), Some(answer.len()));
        http_answer(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").expect_err("is none");
    }

    #[test]
    fn body_parsing_is_independent_of_chunking() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
        for step in 1..chunked.len() {
            let (mut body, mut seen) = (Body::default(), Vec::new());
            for piece in chunked.chunks(step) {
                body.feed(piece, |bytes| seen.extend_from_slice(bytes)).expect("is fine");
            }
            assert_eq!(seen, b"abc0123456789abcdef", "{step}");
            assert!(matches!(body.state, State::Over) && body.payload == 19);
        }
    }

    #[test]
    fn frame_count_handles_longer_ids() {
        let size = FrameSize::measure("id: 7\n\n".len(), 7);
        let mut bytes = 0;
        for id in 5..=12_345 {
            bytes += format!("id: {id}\n\n").len() as u64;
            assert_eq!(size.frames_in(5, bytes), id - 4);
            assert_eq!(size.frames_in(5, bytes - 1), id - 5);
        }
        assert_eq!(size.bytes_of(5, 12_341), bytes);
    }
}
