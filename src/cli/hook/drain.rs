//! The daemon's side of the spool: events that hooks could not tell it while it was away.

use std::path::Path;

use serde_json::Value;

use crate::domain::Caller;
use crate::hook_spool;
use crate::service::Services;
use crate::tools::{Call, Catalogue};

/// Takes in what waits. An event that makes no sense is passed over: it would make none the next time.
pub(in crate::cli) async fn drain(
    services: &Services,
    catalogue: &Catalogue,
    home: &Path,
) -> std::io::Result<usize> {
    let lines = hook_spool::take(home)?;
    let Some(tool) = catalogue.find(&Caller::Operator, "hook_event") else { return Ok(0) };
    let mut told = 0;
    for line in &lines {
        let Ok(Value::Object(arguments)) = serde_json::from_str(line) else {
            tracing::warn!("a hook's event that waited cannot be read");
            continue;
        };
        let call = Call::alone(services.clone(), Caller::Operator);
        if tool.call(call, arguments).await.is_ok() {
            told += 1;
        } else {
            tracing::warn!("a hook's event that waited makes no sense");
        }
    }
    if !lines.is_empty() {
        hook_spool::forget(home)?;
    }
    Ok(told)
}
