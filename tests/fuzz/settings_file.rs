//! Files with settings: of clients that are edited, of repositories, and svc's own: see
//! `svc_fuzz::settings_file`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| svc_fuzz::settings_file(bytes));
