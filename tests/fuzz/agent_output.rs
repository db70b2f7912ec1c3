//! What agents print: see `svc_fuzz::agent_output`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| svc_fuzz::agent_output(bytes));
