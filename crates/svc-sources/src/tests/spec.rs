//! A server for tests.

use serde_json::Value;
use svc_core::service::sources::SourceKey;
use svc_model::source::{SecretDestination, SourceEntry};
use svc_sys::config::sources::SecretBearer;

use crate::spec::SourceSpec;

impl SourceSpec {
    /// A server of the person's own configuration.
    pub(crate) fn for_test(name: &str, entry: &Value) -> Self {
        let destination = SecretDestination::named("own");
        Self {
            key: SourceKey { name: name.to_owned(), project: String::new() },
            root: None,
            base: "/base".into(),
            entry: SourceEntry::parse(entry, true).expect("is good").0,
            fingerprint: String::new(),
            approval: None,
            secrets: String::new(),
            bearer: SecretBearer { server: name.to_owned(), destination, is_own: true },
        }
    }
}
