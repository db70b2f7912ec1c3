//! The errors of a configuration, in words that say what to do.

use std::path::PathBuf;

/// A configuration that cannot be used. Every message names the source, the key and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Neither `SVC_HOME` nor `XDG_DATA_HOME` nor `HOME` says where the data lives.
    #[error(
        "cannot tell where the data lives: neither SVC_HOME nor HOME is set; set SVC_HOME to a folder or use --home"
    )]
    NoHome,
    /// The file exists but cannot be read.
    #[error("cannot read the configuration file {path}; check its owner and mode", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a key that does not exist or a value of the wrong type.
    #[error("in the configuration file {path}: {problem}\ncorrect the file, then try `svc config check {path}`", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The parser's message, with line, column and key.
        problem: String,
    },
    /// A value that was read but makes no sense.
    #[error("{source_name} {problem}; {advice}")]
    Invalid {
        /// Which flag, variable, or key of which file.
        source_name: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        advice: String,
    },
    /// A value of `--mcp-config` that cannot be read.
    #[error("{0}")]
    Sources(String),
    /// `no_auth` together with an address that other machines can reach.
    #[error(
        "no_auth ({origin}) is refused because {address} is not a loopback address: anyone who reaches it would be the operator; \
         listen on 127.0.0.1 or [::1] only, or leave authentication on"
    )]
    NoAuthBeyondLoopback {
        /// Where `no_auth` came from.
        origin: String,
        /// The first listen address that is not loopback.
        address: std::net::SocketAddr,
    },
}
