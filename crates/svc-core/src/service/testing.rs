//! Services over a temporary store, for tests of this crate and of crates that depend on it.

#![expect(clippy::unwrap_used, reason = "for tests alone")]

use std::sync::Arc;

use svc_model::{Caller, Ids};
use svc_store::testing::TestStore;

use super::{Services, Tokens, Tuning};

/// A store, and services over it.
pub async fn opened() -> (TestStore, Services) {
    let test = TestStore::open().await;
    let services = services(&test);
    (test, services)
}

/// Services over the store of `test`, with the store's clock and with ids that count from one.
pub fn services(test: &TestStore) -> Services {
    services_with(test, Tuning::default())
}

pub fn services_with(test: &TestStore, tuning: Tuning) -> Services {
    let tokens = Tokens::open_or_make(&test.folder().join("token")).unwrap();
    let clock = Arc::clone(&test.clock) as _;
    Services::new(test.store.clone(), clock, Ids::counting(), tuning, tokens)
}

/// A caller with a session token that has these scopes and no project.
pub fn session(key: &str, scopes: &[&str]) -> Caller {
    Caller::of_session("tok_test", key, None, scopes)
}
