//! Drains `hooks.spool`, where hooks store events while the daemon is away.

use std::path::Path;

use serde_json::{Map, Value};
use svc_core::service::{Error, Services};
use svc_core::tools::{Call, Catalogue, ErrorType, Failure};
use svc_model::Caller;
use svc_sys::hook_spool::{HookSpool, SPOOLED_PROCESS, SPOOLED_UNPRINTED};

/// Records every event in the spool and returns their number. An event that does not parse or is
/// refused is skipped: a retry would fail in the same way.
pub(super) async fn drain_hook_spool(
    services: &Services,
    catalogue: &Catalogue,
    home: &Path,
) -> std::io::Result<usize> {
    let Some(tool) = catalogue.find(&Caller::Operator, "hook_event") else { return Ok(0) };
    let spool = HookSpool::in_home(home);
    let mut count = 0;
    loop {
        // Lines that a killed daemon had taken come first, then those that were appended since.
        let lines = spool.take()?;
        if lines.is_empty() {
            return Ok(count);
        }
        for line in &lines {
            let Ok(Value::Object(mut arguments)) = serde_json::from_str(line) else {
                tracing::warn!("an event in the hooks' spool cannot be read");
                continue;
            };
            return_unprinted(services, &mut arguments).await?;
            if !arguments.contains_key("client") {
                continue;
            }
            let Some(caller) = caller_of_line(services, &mut arguments).await? else {
                tracing::warn!("an event in the hooks' spool has no known caller");
                continue;
            };
            let call = Call::alone(services.clone(), caller);
            match tool.call(call, arguments).await {
                Ok(_) => count += 1,
                // The disk may be full: the spool is kept, and events that were recorded already
                // are recognised as repeats.
                Err(Failure::Tool(error)) if error.kind == ErrorType::Unavailable => {
                    let is_away = error.reason == Some("store_unavailable");
                    let kind = if is_away {
                        std::io::ErrorKind::NotConnected
                    } else {
                        std::io::ErrorKind::Other
                    };
                    return Err(std::io::Error::new(kind, error.message));
                }
                Err(_) => tracing::warn!("an event in the hooks' spool is refused"),
            }
        }
        spool.remove_taken()?;
    }
}

/// The caller for an event: the client's process that the line names, which may have ended. `None`
/// if that process may not report events. A line without a process is from a system without a list
/// of processes, and counts as the operator's.
async fn caller_of_line(
    services: &Services,
    arguments: &mut Map<String, Value>,
) -> std::io::Result<Option<Caller>> {
    let process = match arguments.remove(SPOOLED_PROCESS) {
        None | Some(Value::Null) => return Ok(Some(Caller::Operator)),
        Some(process) => serde_json::from_value(process).ok(),
    };
    let Some(process) = process else { return Ok(None) };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let client = arguments.get("client").and_then(text).unwrap_or_default();
    let cwd = arguments.get("payload").and_then(|payload| payload.get("cwd")).and_then(text);
    match services.access.caller_of_report(process, &client, cwd).await {
        Ok(caller) => Ok(Some(caller)),
        Err(Error::Forbidden(_)) => Ok(None),
        Err(error) => Err(std::io::Error::other(error)),
    }
}

/// Returns messages to the inbox that were in the response to a line's event, if the hook did not
/// print it.
async fn return_unprinted(
    services: &Services,
    arguments: &mut Map<String, Value>,
) -> std::io::Result<()> {
    let session = arguments.remove(SPOOLED_UNPRINTED);
    let (Some(Value::String(session)), Some(Value::String(id))) = (session, arguments.get("id"))
    else {
        return Ok(());
    };
    let taken_back = services.hooks.take_back(&Caller::Operator, session, vec![id.clone()]);
    taken_back.await.map_err(std::io::Error::other)
}
