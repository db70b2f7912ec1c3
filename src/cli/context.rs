//! What every command needs: the environment, the paths, and the way to the daemon.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Context as _;
use svc_client::{Client, Discovery};
use svc_install::ClientLocations;
use svc_sys::config::{Config, Env, FileConfig, Flags, Paths};

use super::global_flags::GlobalFlags;
use super::output::{self, Screen};

/// The edge of the program, read once and passed down.
#[derive(Debug, Clone)]
pub struct Context {
    /// The environment as it was at the start.
    pub env: Env,
    /// Where the files are.
    pub paths: Paths,
    /// Whether `--json` was given.
    pub json: bool,
    /// Whom standard output is for.
    pub(super) screen: Screen,
    url: Option<String>,
}

impl Context {
    /// Reads the environment of this process and resolves the paths.
    ///
    /// Fails if nothing says where the data lives.
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

    /// How to find the daemon.
    pub(super) fn discovery(&self) -> anyhow::Result<Discovery> {
        let resolve = Config::resolve(self.paths.clone(), &self.env, &Flags::default());
        let config = resolve.or_else(|error| self.without_file().ok_or(error))?;
        Ok(Discovery::new(&config, &self.env, self.url.as_deref())?)
    }

    /// Where the files of this person's clients are, and of the project in the current folder.
    pub(super) fn client_locations(&self) -> anyhow::Result<ClientLocations> {
        let home = self.env.os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Ok(ClientLocations::new(
            home.context("HOME is not set, so the clients' files cannot be found")?,
            std::env::current_dir().context("cannot tell which folder this is")?,
            |name| self.env.os(name).map(OsStr::to_owned),
        ))
    }

    /// Says on standard error what is wrong with the configuration file, where a command does
    /// without it.
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

    /// The configuration without its file, for commands that only look for the daemon: one that
    /// runs is not found by the file, and has read it before somebody made a mistake in it. `None`
    /// if the mistake is elsewhere.
    fn without_file(&self) -> Option<Config> {
        let file = FileConfig::only_token_file(&self.paths.config_file);
        Config::from_sources(self.paths.clone(), &self.env, &Flags::default(), &file).ok()
    }

    /// A client of the daemon, with the caller's token.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.discovery()?.target()?))
    }
}
