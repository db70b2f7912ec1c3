//! The environment, the paths and the connection to the daemon that commands share.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Context as _;
use svc_client::{Client, ClientError, Discovery};
use svc_install::ClientLocations;
use svc_sys::config::{Config, Env, FileConfig, Flags, Paths};

use super::global_flags::GlobalFlags;
use super::output::{self, Screen};

/// What the program reads of its process, once, and passes down.
#[derive(Debug, Clone)]
pub struct Context {
    /// The environment at the start of the process.
    pub env: Env,
    pub paths: Paths,
    pub json: bool,
    /// The properties of standard output.
    pub(super) screen: Screen,
    url: Option<String>,
}

impl Context {
    /// Reads the environment of this process and resolves the paths.
    ///
    /// Fails if neither a flag nor the environment gives the data folder.
    pub(super) fn new(flags: GlobalFlags) -> anyhow::Result<Self> {
        let GlobalFlags { json, utc, color, home, url } = flags;
        let env = Env::from_process();
        let paths = Paths::resolve(&env, home.as_deref())?;
        let screen = Screen::of_process(&env, color, utc);
        Ok(Self { env, paths, json, screen, url })
    }

    /// The configuration, with these flags on top.
    pub fn config(&self, flags: &Flags) -> anyhow::Result<Config> {
        Ok(Config::resolve(self.paths.clone(), &self.env, flags)?)
    }

    pub(super) fn discovery(&self) -> anyhow::Result<Discovery> {
        let resolve = Config::resolve(self.paths.clone(), &self.env, &Flags::default());
        let config = resolve.or_else(|error| self.without_file().ok_or(error))?;
        Ok(Discovery::new(&config, &self.env, self.url.as_deref())?)
    }

    /// For processes of a client. Reads no configuration: hooks have little time.
    pub(super) fn agent_discovery(&self) -> Result<Discovery, ClientError> {
        Discovery::for_agent(&self.paths, &self.env, self.url.as_deref())
    }

    /// Folders of this person's clients and of the project in the current folder.
    pub(super) fn client_locations(&self) -> anyhow::Result<ClientLocations> {
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

    /// A client of the daemon, with the caller's token.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.discovery()?.target()?))
    }
}
