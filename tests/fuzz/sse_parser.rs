//! The client's parser of event streams: any bytes, in any pieces, give the same events and no
//! panic.

#![no_main]

use svc_wire::sse::SseParser;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let (mut whole, mut pieces) = (Vec::new(), Vec::new());
    let mut parser = SseParser::new();
    let one = parser.feed(bytes, &mut whole);
    let mut parser = SseParser::new();
    let many = bytes
        .chunks(usize::from(piece).max(1))
        .try_for_each(|chunk| parser.feed(chunk, &mut pieces));
    assert_eq!(one.is_ok(), many.is_ok());
    assert_eq!(whole, pieces);
});
