//! Configuration: flags over environment over file over defaults, resolved once and validated.
//!
//! Only [`Config::resolve`] knows the precedence; every value keeps its [`Origin`] so that
//! `svc config show` can say where it came from. The process environment is read once, at the edge, into an [`Env`]
//! that is passed in as a value. Nothing here uses the network or holds a secret: the operator token is named by its
//! path only.

mod agents;
mod env;
mod error;
mod file;
mod paths;
mod resolve;
mod session_scopes;
pub mod sources;
mod value;

pub use agents::{AgentsConfig, InstanceProblem, ResolvedInstance};
pub use env::Env;
pub use error::ConfigError;
pub use file::{FileConfig, RetentionSection, SourcesSection, StoreSection};
pub use paths::Paths;
pub use resolve::{Config, ConfigRow, Flags, Origin, Setting};
pub use session_scopes::SessionScopes;
pub use value::{DEFAULT_LISTEN, LogFormat, WakeMode, scope};
