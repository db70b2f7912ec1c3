//! Services over a temporary store, for tests of this floor and of those above.

use std::sync::Arc;

use super::{Services, Tokens, Tuning};
use crate::{domain::Ids, store::testing::TestStore};

/// Services over the store of `test`, with its clock and with ids that count from one.
pub(crate) fn services(test: &TestStore) -> Services {
    services_with(test, Tuning::default())
}

/// The same with these times and bounds.
pub(crate) fn services_with(test: &TestStore, tuning: Tuning) -> Services {
    let tokens = Tokens::open_or_make(&test.folder().join("token")).unwrap();
    let clock = Arc::clone(&test.clock) as _;
    Services::new(test.store.clone(), clock, Ids::counting(), tuning, tokens)
}
