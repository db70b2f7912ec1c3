//! The flags of `svc serve`, which `svc start` and `svc restart` pass on.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use svc_sys::config::{Flags, sources::HandedDocument};

/// Flags of `svc serve`.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub struct ServeArgs {
    /// Address to listen on; repeatable [default: 127.0.0.1:6334]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<String>,
    /// Treat your own programs as the operator, without a token; loopback addresses only
    #[arg(long)]
    pub no_auth: bool,
    /// Accept this Host header too; repeatable
    #[arg(long, value_name = "HOST")]
    pub allowed_host: Vec<String>,
    /// Accept this Origin header too; repeatable
    #[arg(long, value_name = "ORIGIN")]
    pub allowed_origin: Vec<String>,
    /// Let programs of this user, a reverse proxy, pass on requests of signed-in browsers;
    /// repeatable
    #[arg(long, value_name = "NAME")]
    pub proxy_user: Vec<String>,
    /// The operator token's file [default: token in the data folder]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Keep the rows in this database of PostgreSQL, without its password
    /// [default: svc.db in the data folder]
    #[arg(long, value_name = "URL")]
    pub store_url: Option<String>,
    /// The file with the password for --store-url
    #[arg(long, value_name = "PATH")]
    pub store_password_file: Option<PathBuf>,
    /// The schema of our tables in --store-url [default: svc]
    #[arg(long, value_name = "NAME")]
    pub store_schema: Option<String>,
    /// Connections to --store-url, 3 or more [default: 6]
    #[arg(long, value_name = "NUMBER")]
    pub store_max_connections: Option<u64>,
    /// Seconds that a start waits for --store-url [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub store_connect_timeout: Option<u64>,
    /// How to hear of what other connections to --store-url commit: notify or poll
    /// [default: notify]
    #[arg(long, value_name = "MODE")]
    pub store_listen: Option<String>,
    /// What to log: a level, or a list such as svc=debug,warn [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// auto, text or json [default: auto]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What this machine is called, and known by where it has no id [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub daemon_name: Option<String>,
    /// Refuse to start when migrations are pending, rather than apply them
    #[arg(long)]
    pub no_migrate: bool,
    /// Start on a history that `svc migrate` moves to another database, or has moved
    #[arg(long)]
    pub force_local: bool,
    /// Start these MCP servers too: a file with mcpServers, the JSON itself, or - for a line of
    /// standard input; repeatable
    #[arg(long, value_name = "FILE|JSON")]
    pub mcp_config: Vec<String>,
    /// Start no MCP servers but those of --mcp-config
    #[arg(long)]
    pub strict_mcp_config: bool,
    /// Write the log to this file, rotated by size
    #[arg(long, value_name = "PATH", hide = true)]
    pub log_file: Option<PathBuf>,
    /// Leave the session of the terminal
    #[arg(long, hide = true)]
    pub detached: bool,
}

impl ServeArgs {
    /// The flags for the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            listen: self.listen.clone(),
            no_auth: self.no_auth,
            allowed_host: self.allowed_host.clone(),
            allowed_origin: self.allowed_origin.clone(),
            proxy_user: self.proxy_user.clone(),
            token_file: self.token_file.clone(),
            store_url: self.store_url.clone(),
            store_password_file: self.store_password_file.clone(),
            store_schema: self.store_schema.clone(),
            store_max_connections: self.store_max_connections,
            store_connect_timeout: self.store_connect_timeout,
            store_listen: self.store_listen.clone(),
            log_level: self.log_level.clone(),
            log_format: self.log_format.clone(),
            daemon_name: self.daemon_name.clone(),
            log_file: self.log_file.clone(),
            no_migrate: self.no_migrate,
            force_local: self.force_local,
            mcp_config: self.mcp_config.clone(),
            strict_mcp_config: self.strict_mcp_config,
        }
    }

    /// The documents among the values of `--mcp-config`, one a line, for the standard input of
    /// another `svc serve`. They may hold secrets, and every user of the machine can read the
    /// arguments of a process.
    pub(super) fn to_input(&self) -> String {
        let documents = self.mcp_config.iter().filter(|value| is_document(value));
        documents.map(|document| HandedDocument::line(document)).collect()
    }

    /// The flags as arguments of another `svc serve`, without the hidden ones.
    pub(super) fn to_arguments(&self) -> Vec<OsString> {
        let mut out: Vec<OsString> = Vec::new();
        let lists = [
            ("--listen", &self.listen),
            ("--allowed-host", &self.allowed_host),
            ("--allowed-origin", &self.allowed_origin),
            ("--proxy-user", &self.proxy_user),
        ];
        for (flag, values) in lists {
            for value in values {
                out.extend([flag.into(), value.into()]);
            }
        }
        for value in &self.mcp_config {
            // The daemon in the background has another working folder. Documents go to its standard
            // input.
            let path = std::path::absolute(value).ok().filter(|_| !is_document(value));
            let value = path.map_or_else(|| "-".into(), PathBuf::into_os_string);
            out.extend(["--mcp-config".into(), value]);
        }
        let singles = [
            ("--store-url", &self.store_url),
            ("--store-schema", &self.store_schema),
            ("--store-listen", &self.store_listen),
            ("--log-level", &self.log_level),
            ("--log-format", &self.log_format),
            ("--daemon-name", &self.daemon_name),
        ];
        for (flag, value) in singles {
            if let Some(value) = value {
                out.extend([flag.into(), value.into()]);
            }
        }
        let numbers = [
            ("--store-max-connections", self.store_max_connections),
            ("--store-connect-timeout", self.store_connect_timeout),
        ];
        for (flag, value) in numbers {
            if let Some(value) = value {
                out.extend([flag.into(), value.to_string().into()]);
            }
        }
        let paths = [
            ("--store-password-file", &self.store_password_file),
            ("--token-file", &self.token_file),
        ];
        for (flag, value) in paths {
            if let Some(value) = value {
                out.extend([flag.into(), value.into()]);
            }
        }
        for (flag, given) in [
            ("--no-auth", self.no_auth),
            ("--no-migrate", self.no_migrate),
            ("--force-local", self.force_local),
            ("--strict-mcp-config", self.strict_mcp_config),
        ] {
            if given {
                out.push(flag.into());
            }
        }
        out
    }
}

fn is_document(value: &str) -> bool {
    value.trim_start().starts_with('{')
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }

    #[test]
    fn every_visible_flag_is_passed_on() {
        let given = [
            "--listen",
            "127.0.0.1:1",
            "--listen",
            "[::1]:1",
            "--allowed-host",
            "h",
            "--allowed-origin",
            "http://o",
            "--proxy-user",
            "www-data",
            "--mcp-config",
            "{\"mcpServers\":{}}",
            "--store-url",
            "postgres://db/svc",
            "--store-schema",
            "team",
            "--log-level",
            "debug",
            "--log-format",
            "json",
            "--daemon-name",
            "box",
            "--store-max-connections",
            "9",
            "--store-connect-timeout",
            "5",
            "--store-password-file",
            "/p",
            "--token-file",
            "/t",
            "--no-auth",
            "--no-migrate",
            "--strict-mcp-config",
        ];
        let parsed =
            Program::try_parse_from(std::iter::once("svc").chain(given)).expect("is valid");
        let passed_on = given.map(|word| if word.starts_with('{') { "-" } else { word });
        assert_eq!(parsed.serve.to_arguments(), passed_on.map(OsString::from));
        let folder = std::env::current_dir().expect("a folder");
        let line = format!("{}\n", serde_json::json!([folder, { "mcpServers": {} }]));
        assert_eq!(parsed.serve.to_input(), line);
    }
}
