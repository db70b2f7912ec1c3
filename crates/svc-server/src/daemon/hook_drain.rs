//! Takes in what hooks left in `hooks.spool` while they could not reach the daemon.

use std::path::Path;

use serde_json::{Map, Value};
use svc_core::service::{Error, Services};
use svc_core::tools::{Call, Catalogue, ErrorType, Failure};
use svc_model::Caller;
use svc_sys::hook_spool::{HookSpool, SPOOLED_PROCESS, SPOOLED_UNPRINTED};

/// Takes in every event that waits, and gives their number. An event that cannot be read or is
/// refused is passed over: the next time would end the same way.
pub(super) async fn drain_hook_spool(
    services: &Services,
    catalogue: &Catalogue,
    home: &Path,
) -> std::io::Result<usize> {
    let Some(tool) = catalogue.find(&Caller::Operator, "hook_event") else { return Ok(0) };
    let spool = HookSpool::in_home(home);
    let mut count = 0;
    loop {
        // The lines that a killed daemon had taken come first, and those appended since come after
        // them.
        let lines = spool.take()?;
        if lines.is_empty() {
            return Ok(count);
        }
        for line in &lines {
            let Ok(Value::Object(mut arguments)) = serde_json::from_str(line) else {
                tracing::warn!("an event in the hooks' spool cannot be read");
                continue;
            };
            take_back_unprinted(services, &mut arguments).await?;
            if !arguments.contains_key("client") {
                continue;
            }
            let Some(caller) = caller_of_line(services, &mut arguments).await? else {
                tracing::warn!("an event in the hooks' spool is nobody's");
                continue;
            };
            let call = Call::alone(services.clone(), caller);
            match tool.call(call, arguments).await {
                Ok(_) => count += 1,
                // The disk may be full: the events stay, and those taken in already count once.
                Err(Failure::Tool(error)) if error.kind == ErrorType::Unavailable => {
                    return Err(std::io::Error::other(error.message));
                }
                Err(_) => tracing::warn!("an event in the hooks' spool is refused"),
            }
        }
        spool.remove_taken()?;
    }
}

/// Who told of an event: the client's process that the line names, which may be gone by now. `None`
/// if it may tell of nothing. A line without a process is from a system that has no list of them,
/// and is the operator's.
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

/// Takes back the answer to the event of a line, if it was not printed.
async fn take_back_unprinted(
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
