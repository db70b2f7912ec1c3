//! The methods, except `initialize`, `tools/call` and `subscriptions/listen`, which do more than
//! give one answer. This file finds the method and renders its answer for the client's era. It has
//! the methods of tools, prompts, completion, tasks (SEP-2663) and sessions, and relays those that
//! a child server answers.

use std::sync::Arc;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::{Call, Failure, LogLevel};
use svc_model::{Caller, StreamName};
use svc_store::CallRow;
use svc_wire::mcp;
use tokio::sync::mpsc;

use super::{
    McpServer,
    call::{
        CallAnswer, CallRecord, CallRun, McpTaskView, PendingAnswer, WorkEnd, cancel_call,
        rpc_error_of,
    },
    introduction::{client_name, discovery},
    request::{ModernClient, RequestContext, RequestOrigin},
    rpc::{
        CacheHint, ClientRequest, Empty, EraResult, INVALID_PARAMS, OneMember, RESOURCE_NOT_FOUND,
        RequestEra, RpcError, cursor, object_or_empty, raw_json, refuse_cursor, result_message,
        shortened, text_param,
    },
};

const JSON: &str = "application/json";

/// How long a client may keep a list: a minute. A client that listens is told of changes.
const LIST: CacheHint = CacheHint::private(60_000);
/// A list that may change with every event, and the contents of a resource.
const NOT_KEPT: CacheHint = CacheHint::private(0);

#[derive(Clone, Copy)]
pub(crate) struct MethodCall<'a> {
    pub(crate) server: &'a McpServer,
    pub(crate) context: &'a RequestContext,
    pub(crate) request: &'a ClientRequest,
}

impl MethodCall<'_> {
    /// The answer to any request that neither its caller nor [`Self::relayed`] has answered.
    pub(crate) async fn answer(self) -> Result<String, RpcError> {
        let Self { server, context, request } = self;
        let caller = &context.caller;
        let resources = CallerResources { server, caller };
        let (id, params) = (&request.id, &request.params);
        let method = request.method.as_str();
        let modern = context.origin.modern();
        let era = context.origin.era();
        Ok(match (method, modern) {
            ("server/discover", Some(_)) => {
                let discovery = discovery(server, caller, client_name(params)).await?;
                kept(id, era, discovery, LIST)
            }
            ("tasks/get" | "tasks/update" | "tasks/cancel", Some(client)) => {
                self.task_method(client).await?
            }
            ("ping", None) => result_message(id, &Empty {}),
            ("logging/setLevel", None) => {
                self.set_level().await?;
                result_message(id, &Empty {})
            }
            ("resources/subscribe" | "resources/unsubscribe", None) => {
                self.subscribe().await?;
                result_message(id, &Empty {})
            }
            ("tools/list", _) => kept(id, era, self.list_tools().await?, LIST),
            ("prompts/list", _) => kept(id, era, self.list_prompts()?, LIST),
            ("prompts/get", _) => self.get_prompt().await?,
            ("resources/list", _) => kept(id, era, resources.list(params).await?, NOT_KEPT),
            ("resources/templates/list", _) => kept(id, era, resources.templates(params)?, LIST),
            ("resources/read", _) => {
                let uri = text_param(params, "uri")?;
                let contents = resources.read(uri).await?;
                let contents = contents.ok_or_else(|| no_resource(context, uri))?;
                kept(id, era, contents, NOT_KEPT)
            }
            ("completion/complete", _) => {
                // Only child servers complete arguments: see `relayed`.
                let nothing = json!({ "completion": { "values": [], "hasMore": false } });
                result_message(id, &EraResult::complete(era, nothing, None))
            }
            _ => {
                let status = if modern.is_some() { 404 } else { 200 };
                return Err(RpcError::unknown_method(method).status(status));
            }
        })
    }

    async fn list_tools(self) -> Result<OneMember<Vec<Box<RawValue>>>, RpcError> {
        let Self { server, context, request } = self;
        refuse_cursor(&request.params)?;
        if let RequestOrigin::Legacy(session) = &context.origin {
            let hash = server.catalogue.hash_for(&context.caller, server.exposure);
            server.sessions.note_tools_seen(session, hash).await?;
        }
        let tools = server.catalogue.entries_for(&context.caller, context.exposure);
        Ok(OneMember::from([("tools", tools)]))
    }

    async fn set_level(self) -> Result<(), RpcError> {
        let level = text_param(&self.request.params, "level")?;
        let rule = "params.level: must be debug, info, notice, warning, error, critical, alert or emergency";
        let level: LogLevel =
            serde_json::from_value(level.into()).map_err(|_| RpcError::invalid_params(rule))?;
        if let RequestOrigin::Legacy(session) = &self.context.origin {
            self.server.sessions.set_log_level(session, level).await?;
        }
        Ok(())
    }

    async fn subscribe(self) -> Result<(), RpcError> {
        let Self { server, context, request } = self;
        let resources = CallerResources { server, caller: &context.caller };
        let uri = text_param(&request.params, "uri")?;
        let RequestOrigin::Legacy(session) = &context.origin else {
            let text = "a subscription belongs to a session: begin with initialize";
            return Err(RpcError::invalid_params(text));
        };
        if request.method == "resources/unsubscribe" {
            server.services.mcp.unsubscribe_resource(&session.id, uri.to_owned()).await?;
            resources.unwatch(uri).await;
            session.subscriptions.send_modify(|_| ());
        } else {
            let stream = resources.stream_of(uri).await?;
            let stream = stream.ok_or_else(|| no_resource(context, uri))?;
            let stream = stream.as_str().to_owned();
            let (mcp, uri) = (&server.services.mcp, uri.to_owned());
            let head = server.services.log.log_head().await?;
            mcp.subscribe_resource(&context.caller, &session.id, uri, stream).await?;
            session.subscriptions.send_modify(|since| {
                *since = Some(since.map_or(head, |earlier| earlier.min(head)));
            });
        }
        Ok(())
    }

    async fn task_method(self, client: &ModernClient) -> Result<String, RpcError> {
        let Self { server, context, request } = self;
        if !client.has_tasks() {
            let needed = json!({ "extensions": { mcp::TASKS_EXTENSION: {} } });
            return Err(RpcError::missing_capability(&needed));
        }
        let id = request.params.get("taskId").and_then(Value::as_str);
        let id = id.ok_or_else(|| RpcError::invalid_params("params.taskId: must name a task"))?;
        let row = server.services.mcp.call(&context.caller, id).await?.filter(|row| row.is_task);
        let row = row.ok_or_else(|| RpcError::invalid_params("there is no such task"))?;
        match request.method.as_str() {
            "tasks/get" => {
                let view = McpTaskView::read(&server.services, &row).await?;
                let result = EraResult::complete(RequestEra::Modern, view, None);
                return Ok(result_message(&request.id, &result));
            }
            "tasks/update" => self.answer_task(&row).await?,
            _ => {
                let stream = StreamName::new("mcp", &row.call_id);
                cancel_call(server, &row.call_id, &stream).await;
            }
        }
        let result = EraResult::complete(RequestEra::Modern, Empty {}, None);
        Ok(result_message(&request.id, &result))
    }

    /// Passes the client's answers to the tool that waits for them.
    async fn answer_task(self, row: &CallRow) -> Result<(), RpcError> {
        let Some(Value::Object(answers)) = self.request.params.get("inputResponses") else {
            let text = "params.inputResponses: must be an object";
            return Err(RpcError::invalid_params(text));
        };
        let Some(running) = self.server.running.get(&row.call_id) else { return Ok(()) };
        Ok(running.give_answers(answers.clone()).await?)
    }

    /// The answer of a child server to `resources/read`, `prompts/get` or `completion/complete`,
    /// which passes unchanged; `None` if no child server has what the request names.
    pub(crate) fn relayed(self) -> Result<Option<PendingAnswer>, RpcError> {
        let Self { server, context, request } = self;
        let (method, subject) = match request.method.as_str() {
            "prompts/get" => ("prompts/get", "name"),
            "resources/read" => ("resources/read", "uri"),
            "completion/complete" => ("completion/complete", ""),
            _ => return Ok(None),
        };
        let target = server.sources.as_ref().and_then(|sources| {
            sources.of_caller(&context.caller).relay_target(method, &request.params)
        });
        let Some(target) = target else { return Ok(None) };
        let subject = request.params.get(subject).and_then(Value::as_str).unwrap_or_default();
        let mut record = self.record(method, subject);
        let own = || context.caller.session().map(Arc::from);
        record.acting_session = record.acting_session.or_else(own);
        let (sender, messages) = mpsc::unbounded_channel();
        let (caller, origin) = (context.caller.clone(), context.origin.clone());
        let mut run = CallRun::attached(server, caller, origin, record, Some(sender))?;
        let (era, id) = (context.origin.era(), request.id.clone());
        let cache = (method == "resources/read").then_some(NOT_KEPT);
        let answer = async move {
            let call = run.call();
            let end = run.drive(false, target.result(&call)).await;
            // The caller's token may have been revoked while the server worked.
            let permitted = run.still_permitted().await;
            match end {
                WorkEnd::Outcome(outcome) => match permitted.and(outcome) {
                    Ok(result) => CallAnswer::verbatim(&id, era, &result, cache),
                    Err(Failure::NeedsInput) => run.input_required(),
                    Err(failure) => CallAnswer::error(&id, &rpc_error_of(failure)),
                },
                WorkEnd::Cancelled | WorkEnd::Left => CallAnswer::lost(&id, true),
            }
        };
        let (answer, messages) = (answer.boxed(), Some(messages));
        Ok(Some(PendingAnswer { answer, messages, is_repeatable: true, ends_with_token: true }))
    }

    /// The record of a request that asks its client nothing.
    fn record(self, method: &'static str, name: &str) -> CallRecord {
        let Self { server, context, request } = self;
        CallRecord {
            rpc_id: request.id.clone(),
            method,
            name: name.to_owned(),
            params: request.params.clone(),
            raw_params: request.raw_params.clone(),
            trace: context.trace.clone(),
            acting_session: context.acting_session.clone(),
            credential: server.services.access.credential_name(&context.caller),
            started_at: server.services.now(),
            hold: None,
        }
    }

    fn list_prompts(self) -> Result<OneMember<Vec<Box<RawValue>>>, RpcError> {
        let Self { server, context, request } = self;
        refuse_cursor(&request.params)?;
        let mut prompts: Vec<Box<RawValue>> = server.prompts.iter().map(raw_json).collect();
        if let Some(sources) = &server.sources {
            prompts.extend(sources.of_caller(&context.caller).prompts());
        }
        Ok(OneMember::from([("prompts", prompts)]))
    }

    async fn get_prompt(self) -> Result<String, RpcError> {
        let Self { server, context, request } = self;
        let name = text_param(&request.params, "name")?;
        let prompt =
            server.prompts.iter().find(|prompt| prompt.is_called(name)).ok_or_else(|| {
                RpcError::invalid_params(format!("Unknown prompt: {}", shortened(name)))
            })?;
        let arguments = request.params.get("arguments").cloned();
        let arguments = object_or_empty(arguments, "arguments")?;
        prompt.check(&arguments)?;
        // Nobody reads messages of this call. The client of a session waits for the answer, so it
        // cannot be asked, and the call counts as bare.
        let origin = match &context.origin {
            RequestOrigin::Legacy(_) => RequestOrigin::Bare,
            other => other.clone(),
        };
        let record = self.record("prompts/get", prompt.name);
        let caller = context.caller.clone();
        let mut run = CallRun::attached(server, caller, origin, record, None)?;
        let call = Call { params: None, ..run.call() };
        let messages = match run.drive(false, (prompt.render)(call, arguments)).await {
            WorkEnd::Outcome(Ok(messages)) => messages,
            WorkEnd::Outcome(Err(Failure::NeedsInput)) => return Ok(run.input_required().message),
            WorkEnd::Outcome(Err(failure)) => return Err(rpc_error_of(failure)),
            WorkEnd::Cancelled | WorkEnd::Left => return Err(RpcError::internal()),
        };
        let members = json!({ "description": prompt.description, "messages": messages });
        let result = EraResult::complete(context.origin.era(), members, None);
        Ok(result_message(&request.id, &result))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceList {
    resources: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The resources of the daemon and of child servers that a caller may use.
#[derive(Clone, Copy)]
pub(crate) struct CallerResources<'a> {
    pub(crate) server: &'a McpServer,
    pub(crate) caller: &'a Caller,
}

impl CallerResources<'_> {
    pub(super) async fn list(self, params: &Map<String, Value>) -> Result<ResourceList, RpcError> {
        let (server, call, cursor) = (self.server, self.call(), cursor(params)?);
        let (mut resources, mut next_cursor) = (Vec::new(), None);
        for provider in &server.resources {
            let (page, next) = provider.list(&call, cursor).await?;
            resources.extend(page.iter().map(raw_json));
            next_cursor = next_cursor.or(next);
        }
        // The resources of child servers fit into one page.
        if cursor.is_none() {
            resources.extend(self.of_servers());
        }
        Ok(ResourceList { resources, next_cursor })
    }

    pub(super) fn templates(
        self,
        params: &Map<String, Value>,
    ) -> Result<OneMember<Vec<Box<RawValue>>>, RpcError> {
        refuse_cursor(params)?;
        let own = self.server.resources.iter().flat_map(|provider| provider.templates());
        let mut resource_templates: Vec<Box<RawValue>> =
            own.map(|template| raw_json(&template)).collect();
        resource_templates.extend(self.templates_of_servers());
        Ok(OneMember::from([("resourceTemplates", resource_templates)]))
    }

    pub(super) async fn read(self, uri: &str) -> Result<Option<OneMember<Vec<Value>>>, RpcError> {
        let Self { server, caller } = self;
        let call = self.call();
        for provider in &server.resources {
            if let Some(contents) = provider.read(&call, uri).await? {
                return Ok(Some(OneMember::from([("contents", contents)])));
            }
        }
        let Some(sources) = &server.sources else { return Ok(None) };
        let text = sources.results().read(caller, uri).await;
        Ok(text.map(|text| {
            let contents = vec![json!({ "uri": uri, "mimeType": JSON, "text": text })];
            OneMember::from([("contents", contents)])
        }))
    }

    /// The stream whose events change a resource that the caller may read; `None` if there is none.
    pub(crate) async fn stream_of(self, uri: &str) -> Result<Option<StreamName>, RpcError> {
        let Self { server, caller } = self;
        let call = self.call();
        for provider in &server.resources {
            if let Some(stream) = provider.stream_of(&call, uri).await? {
                return Ok(Some(stream));
            }
        }
        let Some(sources) = &server.sources else { return Ok(None) };
        let watched = sources.of_caller(caller).watch_resource(&call, uri, false).await;
        watched.transpose().map_err(rpc_error_of)
    }

    fn of_servers(self) -> Vec<Box<RawValue>> {
        let Self { server, caller } = self;
        let Some(sources) = &server.sources else { return Vec::new() };
        let mut all = sources.of_caller(caller).resources();
        all.extend(sources.results().list(caller).into_iter().map(|kept| {
            raw_json(&json!({
                "uri": kept.uri,
                "name": kept.tool,
                "description": "A large result. It is kept for 7 days.",
                "mimeType": JSON,
                "size": kept.bytes,
            }))
        }));
        all
    }

    fn templates_of_servers(self) -> Vec<Box<RawValue>> {
        let Self { server, caller } = self;
        let Some(sources) = &server.sources else { return Vec::new() };
        let results = raw_json(&json!({
            "uriTemplate": "svc://result/{id}",
            "name": "result",
            "title": "A large result of a tool",
            "description": "What was too large for an answer, whole, for 7 days.",
            "mimeType": JSON,
        }));
        std::iter::once(results).chain(sources.of_caller(caller).templates()).collect()
    }

    pub(super) async fn unwatch(self, uri: &str) {
        let Some(sources) = &self.server.sources else { return };
        sources.of_caller(self.caller).unwatch_resource(&self.call(), uri).await;
    }

    /// Subscribes again in the background, since a restarted daemon has lost its subscriptions at
    /// child servers.
    pub(crate) fn watch_again(self, uris: Vec<String>) {
        let Self { server, .. } = self;
        let (Some(sources), false) = (&server.sources, uris.is_empty()) else { return };
        let (sources, call) = (sources.clone(), self.call());
        server.background.spawn(server.stop.clone().run_until_cancelled_owned(async move {
            for uri in &uris {
                // A resource that cannot be watched now is watched when its server is back.
                let sources = sources.of_caller(&call.caller);
                if let Some(Err(failure)) = sources.watch_resource(&call, uri, true).await {
                    tracing::debug!(?failure, "a resource cannot be watched");
                }
            }
        }));
    }

    fn call(self) -> Call {
        Call::alone(self.server.services.clone(), self.caller.clone())
    }
}

/// The message of a result that a stateless client may cache.
fn kept(id: &RawValue, era: RequestEra, members: impl Serialize, cache: CacheHint) -> String {
    result_message(id, &EraResult::complete(era, members, Some(cache)))
}

fn no_resource(context: &RequestContext, uri: &str) -> RpcError {
    let code = match context.origin {
        RequestOrigin::Modern(_) => INVALID_PARAMS,
        RequestOrigin::Bare | RequestOrigin::Legacy(_) => RESOURCE_NOT_FOUND,
    };
    RpcError::new(code, "there is no such resource").data(json!({ "uri": uri }))
}
