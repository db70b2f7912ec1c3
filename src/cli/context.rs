//! The flags of every command, and the environment, paths and connection that commands share.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use svc_client::{Client, ClientError, Discovery};
use svc_install::ClientLocations;
use svc_sys::config::sources::SourcePlan;
use svc_sys::config::{Config, Env, FileConfig, Flags, Paths};

use super::output::{self, ColorChoice, Screen};
use super::{ExitResult, UsageError};

#[derive(Debug, Default, Args)]
pub(super) struct GlobalFlags {
    /// Print JSON: one document, or one line per item where the output is endless
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print exact times instead of how long ago
    #[arg(long, global = true)]
    pub(super) utc: bool,
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true,
        help = "Use colours: auto, always or never [default: auto; NO_COLOR is never]"
    )]
    pub(super) color: ColorChoice,
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        help = "The data folder [env: SVC_HOME] [default: ~/.local/share/svc]"
    )]
    pub(super) home: Option<PathBuf>,
    #[arg(
        long,
        global = true,
        value_name = "URL",
        help = "The daemon's URL [env: SVC_URL] [default: the socket in the data folder]"
    )]
    pub(super) url: Option<String>,
    /// Print tables whole: all columns, nothing cut
    // Beside `--utc`.
    #[arg(long, global = true, display_order = 1)]
    pub(super) full: bool,
}

/// An object of the members that are set.
pub(super) fn members<const N: usize>(fields: [(&str, Option<String>); N]) -> Map<String, Value> {
    let set = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    set.collect()
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
