//! Where child MCP servers are named, and which entry counts: files are read here, and nothing is started.
//!
//! Reading order: `file` reads one document, `flags` those of `svc serve`, `choices` is what a person has decided (approvals, switches), `approval` what is
//! shown of a file before that, `import` reads other clients' files, `plan` puts all of them in order. `vault` keeps secrets and
//! logins.

mod approval;
mod choices;
mod file;
mod flags;
mod import;
mod plan;
mod vault;

pub use approval::ApprovedEntry;
pub use choices::{SourceChoices, content_hash};
pub use file::{FoundSource, SourceDocument};
pub use flags::{FlagSources, HandedDocument};
pub use import::{ImportFile, ImportedClient};
pub use plan::{
    PlannedSource, SourceFiles, SourcePlan, SourceStanding, naming_folder, project_files,
};
pub use vault::{KeptSecrets, MAX_SOURCE_SECRET, SecretBearer, SourceVault};
