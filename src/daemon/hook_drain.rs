//! The daemon's side of the spool: events that hooks could not tell it while it was away, and answers that they could not
//! print.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::domain::Caller;
use crate::hook_spool;
use crate::service::Services;
use crate::tools::{Call, Catalogue, ErrorType, Failure};

/// Takes in what waits. An event that makes no sense is passed over: it would make none the next time.
pub(super) async fn drain_hook_spool(
    services: &Services,
    catalogue: &Catalogue,
    home: &Path,
) -> std::io::Result<usize> {
    take_back(services, home).await?;
    let Some(tool) = catalogue.find(&Caller::Operator, "hook_event") else { return Ok(0) };
    let mut told = 0;
    loop {
        // What a daemon that was killed had taken comes first, and what has come since after it.
        let lines = hook_spool::take(home)?;
        if lines.is_empty() {
            return Ok(told);
        }
        for line in &lines {
            let Ok(Value::Object(arguments)) = serde_json::from_str(line) else {
                tracing::warn!("a hook's event that waited cannot be read");
                continue;
            };
            let call = Call::alone(services.clone(), Caller::Operator);
            match tool.call(call, arguments).await {
                Ok(_) => told += 1,
                // A disk that is full, perhaps: it waits on, and what was told already counts once.
                Err(Failure::Tool(error)) if error.kind == ErrorType::Unavailable => {
                    return Err(std::io::Error::other(error.message));
                }
                Err(_) => tracing::warn!("a hook's event that waited makes no sense"),
            }
        }
        hook_spool::forget(home)?;
    }
}

/// Takes back what nobody saw. It stands in the file until it is done: a hook that begins meanwhile says it as well.
async fn take_back(services: &Services, home: &Path) -> std::io::Result<()> {
    let known = hook_spool::read_lost(home)?;
    if known.is_empty() {
        return Ok(());
    }
    let mut sessions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for lost in hook_spool::parse_lost(&known) {
        sessions.entry(lost.session).or_default().push(lost.id);
    }
    for (session, calls) in sessions {
        services.hooks.take_back(session, calls).await.map_err(std::io::Error::other)?;
    }
    hook_spool::forget_lost(home, &known)
}
