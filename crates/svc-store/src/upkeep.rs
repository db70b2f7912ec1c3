//! Opening and maintaining the database.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use svc_model::Timestamp;
use svc_sys::{
    config::{Config, ListenMode, Password, StoreUrl},
    machine::{HostIdentity, ThisMachine},
    private_file,
};

use crate::MigrateError;

#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The file. Created if it is missing.
    pub path: PathBuf,
    /// Maximum size of the file in bytes; writes beyond it fail like writes on a full disk.
    pub max_bytes: Option<u64>,
    /// Whether to apply pending migrations; if false, a pending migration is an error.
    pub migrate: bool,
    pub machine: ThisMachine,
}

impl OpenOptions {
    /// Opens the file at `path` without a size bound and applies pending migrations. The machine is
    /// that of the file's folder on this host.
    pub fn for_file(path: PathBuf) -> io::Result<Self> {
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        let machine = ThisMachine::open(folder, &HostIdentity::of_this(None))?;
        Ok(Self { path, max_bytes: None, migrate: true, machine })
    }
}

#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub url: StoreUrl,
    /// Read from a file of its own; takes precedence over the password of the URL.
    pub password: Option<Password>,
    /// The schema that has our tables. Created if it is missing.
    pub schema: String,
    /// All connections of the daemon, at least 3.
    pub max_connections: u32,
    /// How long a start waits for the server.
    pub connect_timeout: Duration,
    pub listen: ListenMode,
    /// Whether to apply pending migrations; if false, a pending migration is an error.
    pub migrate: bool,
}

impl PostgresOptions {
    /// The database that the configuration names; `None` if it names none.
    ///
    /// # Errors
    /// [`MigrateError::Refused`] if the file of the password cannot be read.
    pub fn configured(config: &Config) -> Result<Option<Self>, MigrateError> {
        let settings = &config.store;
        let Some(url) = settings.url.value.clone() else { return Ok(None) };
        let password = settings.password_file.value.as_deref().map(password_of).transpose()?;
        Ok(Some(Self {
            url,
            password,
            schema: settings.schema.value.clone(),
            max_connections: u32::try_from(settings.max_connections.value).unwrap_or(u32::MAX),
            connect_timeout: Duration::from_secs(settings.connect_timeout.value),
            listen: settings.listen.value,
            migrate: !config.no_migrate,
        }))
    }

    /// Names the database and its schema in messages to people.
    pub fn place(&self) -> String {
        format!("{}, schema {}", self.url.shown(), self.schema)
    }
}

fn password_of(path: &Path) -> Result<Password, MigrateError> {
    let refused = |why: String| {
        MigrateError::Refused(format!("store.password_file {}: {why}", path.display()))
    };
    let text = private_file::read_secret(path).map_err(|error| refused(error.to_string()))?;
    let text = text.ok_or_else(|| refused("there is no such file".to_owned()))?;
    Ok(Password::of_file(&text))
}

/// A setting: this history is being moved to another database, was moved there, or came from there.
/// Each database has its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MoveMark {
    /// Id of the move, the same on both sides.
    pub(crate) export: String,
    /// The other database, as messages to people name it.
    pub(crate) at: String,
    /// Position of the last event of the source when the move began.
    #[serde(default)]
    pub(crate) last: Option<i64>,
}

impl MoveMark {
    pub(crate) const MOVING_TO: &str = "moving_to";
    pub(crate) const MOVED_TO: &str = "moved_to";
    #[cfg(feature = "postgres")]
    pub(crate) const MOVED_FROM: &str = "moved_from";
    #[cfg(feature = "postgres")]
    pub(crate) const NAMES: [&str; 3] = [Self::MOVING_TO, Self::MOVED_TO, Self::MOVED_FROM];

    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("texts have a JSON form")
    }
}

/// State of a PostgreSQL server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is observed on its own")]
pub struct ServerReport {
    /// Such as `15.18`.
    pub version: String,
    pub round_trip: Duration,
    pub sync: ServerSync,
    /// The server's clock minus ours.
    pub skew_ms: i64,
    /// The server accepts only reads: it is a standby, or has not started yet.
    pub in_recovery: bool,
    /// The server survives a page that a power cut leaves half written: `full_page_writes`.
    pub writes_full_pages: bool,
    /// The server notifies us of commits of other connections.
    pub is_listening: bool,
    /// The connection is unencrypted and leaves this host.
    pub is_readable: bool,
    /// Versions of the daemons that have a lease there.
    pub daemons: Vec<String>,
    /// 99th percentile of the waits of the last commits for the lock of the writers.
    pub lock_wait: Duration,
}

/// Whether a standby has every commit that the server acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerSync {
    Sync,
    /// There are standbys, and commits wait for none of them.
    Async,
    /// There is no standby.
    None,
    /// A commit waits for a standby that does not answer.
    Stalled,
}

impl ServerSync {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
            Self::None => "none",
            Self::Stalled => "stalled",
        }
    }
}

/// Result of one step of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimOutcome {
    pub removed: u64,
    /// Whether more events may be due for removal.
    pub more: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSize {
    pub database: u64,
    /// Bytes of the write-ahead log.
    pub wal: u64,
    pub schema: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeSample {
    pub at: Timestamp,
    /// Bytes of the pages in use.
    pub used: u64,
}

/// The program's migrations compared with those of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrations {
    /// Schema version of the database; 0 for a new file.
    pub current: i64,
    /// Schema version that this program writes.
    pub latest: i64,
    /// Version and description of each migration to apply, in order.
    pub pending: Vec<(i64, String)>,
}

/// What a move of a history to another database has copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyReport {
    pub tables: Vec<(String, u64)>,
    /// An earlier attempt had copied everything; only its end was recorded now.
    pub is_repeat: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBackup {
    pub path: PathBuf,
    pub bytes: u64,
    /// When the copy was complete.
    pub at: Timestamp,
}
