//! What comes in on a host's socket, and what hosts write: see `svc_fuzz::host_socket`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| svc_fuzz::host_socket(bytes));
