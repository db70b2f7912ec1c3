//! What every command needs: the environment, the paths, and the way to the daemon.

use super::global_flags::GlobalFlags;
use super::output::Screen;
use crate::client::{Client, Discovery};
use crate::config::{Config, Env, Flags, Paths};

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
        let config = self.config(&Flags::default())?;
        Ok(Discovery::new(&config, &self.env, self.url.as_deref())?)
    }

    /// A client of the daemon, with the caller's token.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.discovery()?.target()?))
    }
}
