//! Services over a temporary store, for tests of this crate and of crates that depend on it.

#![expect(clippy::unwrap_used, reason = "for tests alone")]

use std::{path::Path, sync::Arc};

use svc_model::{Caller, Ids};
use svc_store::testing::TestStore;
use svc_sys::session_secret::SessionSecrets;

use super::{ServiceSettings, Services, SessionSettings, Tokens, Tuning};

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
    configured(test, &tuning, ServiceSettings::default())
}

/// Services that keep the secrets of sessions in this data folder.
pub fn services_in(test: &TestStore, home: &Path) -> Services {
    let secrets = Some(SessionSecrets::in_home(home));
    let sessions = SessionSettings { secrets, ..SessionSettings::default() };
    let settings = ServiceSettings { sessions, ..ServiceSettings::default() };
    configured(test, &Tuning::default(), settings)
}

fn configured(test: &TestStore, tuning: &Tuning, settings: ServiceSettings) -> Services {
    let tokens = Tokens::open_or_make(&test.folder().join("token")).unwrap();
    let (store, clock) = (test.store.clone(), Arc::clone(&test.clock) as _);
    Services::new(store, clock, Ids::counting(), *tuning, tokens, settings)
}

/// Stores the running agent `ag_1`, of which nothing else is on record.
pub async fn insert_agent(test: &TestStore) {
    test.execute(
        "
        insert into stream (name, created_at, visibility) values ('agent/ag_1', 1, 'team');
        insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, created_by, state, pid,
            request_timeout, started_at)
        values ('ag_1', (select id from stream where name = 'agent/ag_1'), 'pair', 'exec', 'agent:pair:one', '/p', '/c',
            'operator', 'running', 1, 1, 1);",
    )
    .await;
}

/// A caller with a session token that has these scopes and no project.
pub fn session(key: &str, scopes: &[&str]) -> Caller {
    Caller::of_session("tok_test", key, None, scopes)
}
