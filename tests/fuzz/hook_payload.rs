//! The payloads of clients' hooks: see `svc_fuzz::hook_payload`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| svc_fuzz::hook_payload(bytes));
