//! The `svc` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    svc::cli::run()
}
