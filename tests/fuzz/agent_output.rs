//! What agents print: see `svc::fuzzing::agent_output`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| svc::fuzzing::agent_output(bytes));
