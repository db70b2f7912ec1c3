//! The tools that call servers. A call is counted, reported as an event, and sent by the instance
//! that serves the caller.

use std::{sync::Arc, time::Duration};

use svc_core::{
    service::sources::CallEvent,
    tools::{Call, ErrorType, Failure, Output, Tool, ToolError},
};

use super::state::{SourceManager, SourceTools};
use crate::{
    call::{ServerRequest, serves},
    metrics::{CallMeter, CallOutcome},
    spec::SourceSpec,
    view::OfferedTools,
};

/// The tools of a server.
pub(super) fn server_tools(
    manager: &SourceManager,
    spec: &Arc<SourceSpec>,
    offered: OfferedTools,
) -> SourceTools {
    let tools = offered.tools.into_iter().map(|(name, tool)| {
        let bound = manager.results().bound_of(&tool.declaration.entry.read);
        let (manager, spec) = (manager.downgrade(), Arc::clone(spec));
        let (own_name, traits) = (tool.own_name, tool.traits);
        let run = move |call: Call, arguments| {
            let (manager, spec) = (manager.clone(), Arc::clone(&spec));
            let (own_name, traits) = (Arc::clone(&own_name), Arc::clone(&traits));
            async move {
                let Some(manager) = manager.upgrade() else {
                    let text = "the daemon is about to end";
                    return Err(ToolError::new(ErrorType::Unavailable, text).into());
                };
                let shown = format!("{}__{own_name}", spec.key.name);
                let request = ServerRequest::tool(&own_name, &traits, arguments);
                let made =
                    ChildToolCall { manager: &manager, spec: &spec, tool: &own_name, call: &call };
                let output = made.make(request).await?;
                Ok(manager.results().shorten(&call.caller, &shown, bound, output).await)
            }
        };
        (name, Arc::new(Tool::foreign(tool.declaration, run)))
    });
    SourceTools { tools: Arc::new(tools.collect()), problems: offered.problems }
}

/// The tools of the built-in server, metered like those of others.
pub(super) fn core_tools(manager: &SourceManager, spec: &Arc<SourceSpec>) -> SourceTools {
    let tools = manager.0.core.tools(&spec.entry, manager.env()).into_iter().filter_map(|tool| {
        let declaration = tool.foreign_declaration()?.clone();
        let (manager, spec, tool) = (manager.downgrade(), Arc::clone(spec), Arc::new(tool));
        let name = tool.name().to_owned();
        let run = move |call: Call, arguments| {
            let (manager, spec, tool) = (manager.clone(), Arc::clone(&spec), Arc::clone(&tool));
            async move {
                let meter = manager.upgrade().map(|manager| {
                    let made = ChildToolCall {
                        manager: &manager,
                        spec: &spec,
                        tool: tool.name(),
                        call: &call,
                    };
                    made.meter()
                });
                let caller = call.caller.clone();
                let answer = tool.call(call, arguments).await;
                if let Some(meter) = meter {
                    meter.end(CallOutcome::from_answer(&answer));
                }
                let Some(manager) = manager.upgrade() else { return answer };
                let results = manager.results();
                let bound = results.bound_of(&serde_json::Value::Null);
                Ok(results.shorten(&caller, tool.name(), bound, answer?).await)
            }
        };
        Some((name, Arc::new(Tool::foreign(declaration, run))))
    });
    SourceTools { tools: Arc::new(tools.collect()), problems: Vec::new() }
}

/// One call of a tool of a server.
struct ChildToolCall<'a> {
    manager: &'a SourceManager,
    spec: &'a Arc<SourceSpec>,
    /// The server's own name of the tool.
    tool: &'a str,
    call: &'a Call,
}

impl ChildToolCall<'_> {
    async fn make(&self, request: ServerRequest) -> Result<Output, Failure> {
        let Self { manager, spec, call, .. } = self;
        let meter = self.meter();
        let Some(instance) = manager.instance(spec, serves(spec, call)) else {
            meter.end(CallOutcome::Unavailable);
            let text = format!("{} is turned off or gone", spec.key.name);
            return Err(ToolError::new(ErrorType::Unavailable, text).retryable(false).into());
        };
        let (outcome, answer) = request.make(&instance, manager.suspended(), call).await;
        match &answer {
            Err(Failure::NeedsInput) => meter.ask(),
            _ => meter.end(outcome),
        }
        answer
    }

    /// Counts a call, and reports it as an event.
    fn meter(&self) -> CallMeter<impl FnMut(CallOutcome, Duration) + use<>> {
        let Self { call, .. } = self;
        let session = call.session.as_deref().or(call.caller.session()).map(str::to_owned);
        let (manager, tool) = (self.manager.clone(), self.tool.to_owned());
        let spec = Arc::clone(self.spec);
        CallMeter::new(move |outcome: CallOutcome, took: Duration| {
            manager.0.metrics.count(&spec.key.name, &tool, outcome.as_str(), took);
            let event = CallEvent {
                tool: tool.clone(),
                duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                outcome: outcome.as_str(),
                session: session.clone(),
            };
            // In a flood calls are counted, but their events may be dropped.
            manager.0.events.try_send((spec.key.clone(), event)).ok();
        })
    }
}
