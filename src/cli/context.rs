//! The flags of every command, and the environment, paths and connection that commands share.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use svc_client::{Client, ClientError, Discovery};
use svc_install::ClientLocations;
use svc_sys::config::sources::SourcePlan;
use svc_sys::config::{Config, Env, FileConfig, Flags, Paths};

use super::output::{self, ColorChoice, Screen};
use super::{ExitResult, UsageError};

// Behind the options of a command itself.
#[derive(Debug, Default, Args)]
#[expect(clippy::doc_markdown, reason = "a terminal shows the texts")]
pub(super) struct GlobalFlags {
    /// Print JSON: one document, or one line per item where the output is endless
    #[arg(long, global = true, display_order = 900)]
    pub(super) json: bool,
    /// Print tables whole: all columns, nothing cut
    #[arg(long, global = true, display_order = 901)]
    pub(super) full: bool,
    /// Print exact times instead of how long ago
    #[arg(long, global = true, display_order = 902)]
    pub(super) utc: bool,
    /// Use colours: auto, always or never [default: auto; NO_COLOR is never]
    #[arg(long, global = true, display_order = 903, value_enum, value_name = "WHEN")]
    #[arg(default_value_t, hide_default_value = true, hide_possible_values = true)]
    pub(super) color: ColorChoice,
    /// The data folder [env: SVC_HOME] [default: ~/.local/share/svc]
    #[arg(long, global = true, display_order = 904, value_name = "DIR")]
    pub(super) home: Option<PathBuf>,
    /// The daemon's URL [env: SVC_URL] [default: the socket in the data folder]
    #[arg(long, global = true, display_order = 905, value_name = "URL")]
    pub(super) url: Option<String>,
}

/// The name and the value of an argument of `flag`, such as `KEY=VALUE`.
pub(super) fn key_value<'a>(flag: &str, pair: &'a str) -> Result<(&'a str, &'a str), UsageError> {
    pair.split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| UsageError(format!("{flag} {pair}: not of the form KEY=VALUE")))
}

/// What the program reads of its process, once, and passes down.
#[derive(Debug, Clone)]
pub struct Context {
    pub env: Env,
    pub paths: Paths,
    pub json: bool,
    pub(super) screen: Screen,
    url: Option<String>,
}

impl Context {
    /// Fails if neither a flag nor the environment gives the data folder.
    pub(super) fn new(flags: GlobalFlags) -> Result<Self> {
        let GlobalFlags { json, utc, full, color, home, url } = flags;
        let env = Env::from_process();
        let paths = Paths::resolve(&env, home.as_deref())?;
        let screen = Screen::of_process(&env, color, utc, full);
        Ok(Self { env, paths, json, screen, url })
    }

    pub fn config(&self, flags: &Flags) -> Result<Config> {
        Ok(Config::resolve(self.paths.clone(), &self.env, flags)?)
    }

    /// The child MCP servers that files name in the current folder.
    pub(super) fn source_plan(&self) -> Result<SourcePlan> {
        let here = std::env::current_dir().ok();
        Ok(self.config(&Flags::default())?.sources.plan(here.as_deref()))
    }

    /// Refuses `--url` for a command that is about this machine and asks no daemon elsewhere.
    pub(super) fn refuse_url(&self, command: &str) -> Result<(), UsageError> {
        match &self.url {
            None => Ok(()),
            Some(url) => Err(UsageError(format!(
                "--url {url}: `svc {command}` is about the data folder on this machine, which --home names"
            ))),
        }
    }

    pub(super) fn discovery(&self) -> Result<Discovery> {
        let resolve = Config::resolve(self.paths.clone(), &self.env, &Flags::default());
        let config = resolve.or_else(|error| self.without_file().ok_or(error))?;
        let Config { paths, token_file, .. } = config;
        Ok(Discovery::new(&paths, token_file.value, &self.env, self.url.as_deref())?)
    }

    /// For processes of a client. Reads no configuration: hooks have little time.
    pub(super) fn agent_discovery(&self) -> Result<Discovery, ClientError> {
        Discovery::new(&self.paths, PathBuf::new(), &self.env, self.url.as_deref())
    }

    pub(super) fn client_locations(&self) -> Result<ClientLocations> {
        let home = self.env.os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Ok(ClientLocations::new(
            home.context("HOME is not set, so the clients' files cannot be found")?,
            std::env::current_dir().context("cannot tell which folder this is")?,
            |name| self.env.os(name).map(OsStr::to_owned),
        ))
    }

    /// Reports a bad configuration file on standard error, for commands that go on without the
    /// file.
    pub(super) fn warn_of_file(&self) {
        let resolved = Config::resolve(self.paths.clone(), &self.env, &Flags::default());
        if let Err(error) = resolved
            && self.without_file().is_some()
        {
            output::notes(&format!(
                "warning: {error}\na running daemon keeps the configuration that it has read\n"
            ));
        }
    }

    /// The configuration without its file, for commands that only connect to the daemon: a running
    /// daemon is found without the file, and read it before the mistake was made. `None` if the
    /// mistake is elsewhere.
    fn without_file(&self) -> Option<Config> {
        let file = FileConfig::only_token_file(&self.paths.config_file);
        Config::from_sources(self.paths.clone(), &self.env, &Flags::default(), &file).ok()
    }

    pub(super) fn client(&self) -> Result<Client> {
        Ok(Client::new(self.discovery()?.target()?))
    }

    /// Prints a document: with `--json` as it is, else by `shown`.
    pub(super) fn print(
        &self,
        document: &impl Serialize,
        shown: impl FnOnce() -> Result<()>,
    ) -> ExitResult {
        let printed = if self.json { output::json(document) } else { shown() };
        printed.map(|()| ExitCode::SUCCESS)
    }

    /// Prints a document: with `--json` as it is, else as this line.
    pub(super) fn print_line(&self, document: &impl Serialize, line: &str) -> ExitResult {
        self.print(document, || output::line(line))
    }

    /// Prints an object: with `--json` as it is, else a line for each member, those of `first`
    /// first.
    pub(super) fn print_object(&self, object: &Value, first: &[&str]) -> ExitResult {
        self.print(object, || output::object(object, first))
    }
}
