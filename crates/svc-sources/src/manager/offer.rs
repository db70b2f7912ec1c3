//! Tools of servers as the catalogue has them: each call is counted, told, and made by the instance that serves the caller.

use std::{sync::Arc, time::Duration};

use svc_core::{
    service::sources::CallEvent,
    tools::{Call, ErrorType, Failure, Output, Tool, ToolError},
};

use super::state::{SourceManager, SourceTools};
use crate::{
    call::{CalledTool, call_tool, serves},
    call_outcome::{CallMeter, CallOutcome},
    spec::SourceSpec,
    view::OfferedTools,
};

impl SourceManager {
    pub(super) fn tools(&self, spec: &Arc<SourceSpec>, offered: OfferedTools) -> SourceTools {
        let tools = offered.tools.into_iter().map(|(name, tool)| {
            let bound = self.0.results.bound_of(&tool.declaration.entry.read);
            let (manager, spec) = (Arc::downgrade(&self.0), Arc::clone(spec));
            let (own_name, traits) = (tool.own_name, tool.traits);
            let run = move |call: Call, arguments| {
                let (manager, spec) = (manager.clone(), Arc::clone(&spec));
                let (own_name, traits) = (Arc::clone(&own_name), Arc::clone(&traits));
                async move {
                    let Some(manager) = manager.upgrade() else {
                        let text = "the daemon is about to end";
                        return Err(ToolError::new(ErrorType::Unavailable, text).into());
                    };
                    let manager = Self(manager);
                    let shown = format!("{}__{own_name}", spec.key.name);
                    let tool = CalledTool { name: &own_name, traits: &traits };
                    let output = manager.call(&spec, tool, &call, &arguments).await?;
                    Ok(manager.0.results.shorten(&call.caller, &shown, bound, output).await)
                }
            };
            (name, Arc::new(Tool::foreign(tool.declaration, run)))
        });
        SourceTools { tools: Arc::new(tools.collect()), problems: offered.problems }
    }

    async fn call(
        &self,
        spec: &Arc<SourceSpec>,
        tool: CalledTool<'_>,
        call: &Call,
        arguments: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Output, Failure> {
        let meter = self.meter(spec, tool.name, call);
        let Some(instance) = self.instance(spec, serves(spec, call)) else {
            meter.end(CallOutcome::Unavailable);
            let text = format!("{} is turned off or gone", spec.key.name);
            return Err(ToolError::new(ErrorType::Unavailable, text).retryable(false).into());
        };
        let suspended = &self.0.suspended;
        let (outcome, answer) = call_tool(&instance, suspended, tool, call, arguments).await;
        match &answer {
            Err(Failure::NeedsInput) => meter.ask(),
            _ => meter.end(outcome),
        }
        answer
    }

    /// Counts a call, and tells of it.
    fn meter(
        &self,
        spec: &Arc<SourceSpec>,
        tool: &str,
        call: &Call,
    ) -> CallMeter<impl FnMut(CallOutcome, Duration) + use<>> {
        let (manager, spec, tool) = (self.clone(), Arc::clone(spec), tool.to_owned());
        let session = call.session.as_deref().or(call.caller.session()).map(str::to_owned);
        CallMeter::new(move |outcome: CallOutcome, took: Duration| {
            manager.0.metrics.count(&spec.key.name, &tool, outcome.as_str(), took);
            let event = CallEvent {
                tool: tool.clone(),
                duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                outcome: outcome.as_str(),
                session: session.clone(),
            };
            // A flood of calls is counted, and need not be told one by one.
            manager.0.events.try_send((spec.key.clone(), event)).ok();
        })
    }

    /// The tools of the built-in server, counted as those of others.
    pub(super) fn core_tools(&self, spec: &Arc<SourceSpec>) -> SourceTools {
        let tools = self.0.core.tools(&spec.entry, &self.0.env).into_iter().filter_map(|tool| {
            let declaration = tool.foreign_declaration()?.clone();
            let (manager, spec, tool) = (Arc::downgrade(&self.0), Arc::clone(spec), Arc::new(tool));
            let name = tool.name().to_owned();
            let run = move |call: Call, arguments| {
                let (manager, spec, tool) = (manager.clone(), Arc::clone(&spec), Arc::clone(&tool));
                async move {
                    let meter =
                        manager.upgrade().map(|it| Self(it).meter(&spec, tool.name(), &call));
                    let caller = call.caller.clone();
                    let answer = tool.call(call, arguments).await;
                    if let Some(meter) = meter {
                        meter.end(CallOutcome::of(&answer));
                    }
                    let Some(manager) = manager.upgrade() else { return answer };
                    let results = &manager.results;
                    let bound = results.bound_of(&serde_json::Value::Null);
                    Ok(results.shorten(&caller, tool.name(), bound, answer?).await)
                }
            };
            Some((name, Arc::new(Tool::foreign(declaration, run))))
        });
        SourceTools { tools: Arc::new(tools.collect()), problems: Vec::new() }
    }
}
