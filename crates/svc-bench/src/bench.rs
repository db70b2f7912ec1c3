//! The state of a run, which every scenario uses.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use super::{
    daemon::BigHome,
    report::{self, Figure, Slice, Window},
    sandbox::{Disk, Sandbox},
};

/// Warm-up and length of a window.
pub(crate) type WindowOf = (Duration, Duration);

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) svc: Option<PathBuf>,
    pub(crate) quick: bool,
    pub(crate) large: bool,
    pub(crate) mcp_peer: Option<SocketAddr>,
}

#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) sandbox: Sandbox,
    pub(crate) quick: bool,
    pub(crate) large: bool,
    pub(crate) rounds: usize,
    pub(crate) window_of: WindowOf,
    pub(crate) mcp_peer: Option<SocketAddr>,
    /// The version of each peer, or why the peer is missing.
    pub(crate) peers: Vec<String>,
    pub(crate) disk: Disk,
    pub(crate) results: Vec<Figure>,
    big_home: Option<BigHome>,
}

impl Bench {
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Self> {
        Self::within(Sandbox::new(svc_program(settings.svc.as_deref())?)?, settings)
    }

    /// As `new`, in an existing folder with its program.
    pub(crate) fn within(sandbox: Sandbox, settings: &Settings) -> anyhow::Result<Self> {
        let window_of =
            |warm, measure| (Duration::from_millis(warm), Duration::from_millis(measure));
        let (rounds, window_of) =
            if settings.quick { (3, window_of(20, 80)) } else { (5, window_of(200, 1000)) };
        let disk = Disk::look(&sandbox)?;
        Ok(Self {
            sandbox,
            disk,
            quick: settings.quick,
            large: settings.large,
            rounds,
            window_of,
            big_home: None,
            mcp_peer: settings.mcp_peer,
            peers: Vec::new(),
            results: Vec::new(),
        })
    }

    /// Begins a round: shows its name and waits until the disk is idle.
    pub(crate) fn begin_round(&mut self, name: &str) -> anyhow::Result<()> {
        report::show_step(name);
        if self.quick { Ok(()) } else { self.disk.settle(&self.sandbox) }
    }

    /// Measures svc and a baseline alternately. Each operation counts `weight` times, as a request
    /// may carry several events.
    pub(crate) fn in_turns(
        &mut self,
        (name, unit, weight): (&str, &'static str, u64),
        mut ours: impl FnMut(&Self) -> anyhow::Result<Slice>,
        (beside, mut theirs): (&str, impl FnMut(&Self) -> anyhow::Result<Slice>),
    ) -> anyhow::Result<Figure> {
        let (mut our_rounds, mut their_rounds) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            self.begin_round(name)?;
            our_rounds.push(ours(self)?);
            their_rounds.push(theirs(self)?);
        }
        Ok(Figure::compared(name, unit, weight, &our_rounds, (beside, &their_rounds)))
    }

    pub(crate) fn window(&self) -> Window {
        Window::after(self.window_of.0, self.window_of.1)
    }

    /// A data folder with one task of very many events. Created at the first use.
    pub(crate) fn big_home(&mut self) -> anyhow::Result<BigHome> {
        if let Some(home) = &self.big_home {
            return Ok(home.clone());
        }
        let events = if self.quick { 20_000 } else { 1_000_000 };
        let home = BigHome::make(&self.sandbox, "big", events)?;
        self.big_home = Some(home.clone());
        Ok(home)
    }

    /// Removes what a scenario left, except the data folder of very many events.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        let kept = self.big_home.as_ref().map(|home| home.name);
        self.sandbox.clear(kept)
    }

    pub(crate) fn add(&mut self, figure: Figure) {
        self.results.push(figure);
    }
}

/// The program to measure: the named one, else the `svc` beside this program, else the one on
/// `PATH`.
pub(crate) fn svc_program(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        // Child processes have another working folder.
        let svc = std::path::absolute(path)?;
        anyhow::ensure!(svc.is_file(), "there is no program {}", svc.display());
        return Ok(svc);
    }
    let own = std::env::current_exe()?;
    let beside = own.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join("svc"))
        .find(|program| program.is_file())
        .context("there is no svc beside this program or on PATH: `cargo build --release` makes one, --svc names another")
}
