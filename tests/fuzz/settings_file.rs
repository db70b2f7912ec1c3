//! Files with settings: of clients that are edited, of repositories, and svc's own: see `svc::fuzzing::settings_file`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| svc::fuzzing::settings_file(bytes));
