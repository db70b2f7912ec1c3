//! Configuration: flags over environment over file over defaults, resolved once and validated.
//!
//! Only [`Config::resolve`] knows the precedence; every value keeps its [`Origin`] for `svc config
//! show`. The environment of the process is read once, into an [`Env`]. Nothing here uses the
//! network, and of secrets only the address of a database may hold one.

mod agents;
mod environment;
mod file;
mod resolve;
mod setting;
pub mod sources;
mod store;

pub use agents::{AgentsConfig, InstanceProblem, ResolvedInstance};
pub use environment::{ConfigError, Env, Paths};
pub use file::{FileConfig, RetentionSection, SessionScopes, SourcesSection, StoreSection};
pub use resolve::{Config, Flags};
pub use setting::{ConfigRow, DEFAULT_LISTEN, LogFormat, Origin, Setting, WakeMode, scope};
pub use store::{ListenMode, Password, StoreSettings, StoreUrl};
