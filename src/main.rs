//! The `svc` binary.
fn main() {}
