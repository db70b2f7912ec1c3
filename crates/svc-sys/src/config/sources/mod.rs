//! The files that name child MCP servers, and which entry counts. Nothing is started here.
//!
//! `document` reads one document, also of `svc serve --mcp-config`, `choices` keeps the approvals
//! and switches of a person, `import` reads files of other clients, `plan` orders all of them.
//! `vault` keeps secrets and logins.

mod choices;
mod document;
mod import;
mod plan;
mod vault;

pub use choices::{ApprovedEntry, SourceChoices, content_hash};
pub use document::{FlagSources, FoundSource, HandedDocument, SourceDocument};
pub use import::{ImportFile, ImportedClient};
pub use plan::{
    PlannedSource, SourceFiles, SourcePlan, SourceStanding, naming_folder, project_files,
};
pub use vault::{KeptSecrets, MAX_SOURCE_SECRET, SecretBearer, SourceVault};
