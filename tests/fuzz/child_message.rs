//! JSON-RPC of child MCP servers: see `svc_fuzz::child_message`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| svc_fuzz::child_message(bytes));
