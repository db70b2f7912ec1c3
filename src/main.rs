//! The `svc` binary.

use std::process::ExitCode;

// glibc's allocator took an eighth of the daemon's time under load: each request makes some dozens of small blocks
// on one thread and frees them on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    svc::cli::run()
}
