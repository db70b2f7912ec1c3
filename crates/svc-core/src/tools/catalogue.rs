use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest as _, Sha256};
use svc_model::{Caller, SHORT_LIST, ToolExposure, source::matches_glob};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{Annotations, ErrorType, Tool, ToolError, call::TOOL_CALL};
use crate::service::Listed;

const SHORT_LIST_MAX: usize = 10;
const LISTED_FOREIGN_MAX: usize = 10;

/// The tools by name. They may change, and readers of the list can watch it.
#[derive(Debug)]
pub struct Catalogue {
    tools: RwLock<Arc<BTreeMap<String, Arc<Tool>>>>,
    changes: watch::Sender<u64>,
    foreign: OnceLock<Arc<dyn ChildTools>>,
    /// Globs of the tools that sessions reach through `ToolCall`.
    tool_call: OnceLock<Vec<String>>,
}

/// Tools of child servers, which depend on the caller.
pub trait ChildTools: fmt::Debug + Send + Sync {
    fn offered_to(&self, caller: &Caller) -> Arc<BTreeMap<String, Arc<Tool>>>;
    /// Whether a server of the caller's may still get a tool of this name, because it has not
    /// listed its tools yet.
    fn may_appear(&self, caller: &Caller, name: &str) -> bool;
    /// Why a tool of this name cannot be called: it belongs to a server of the caller's that has
    /// never listed its tools and does not work now.
    fn absence(&self, caller: &Caller, name: &str) -> Option<ToolError>;
    /// The tools of all callers; one of each name.
    fn all(&self) -> Vec<Arc<Tool>>;
}

/// The call of another tool that a call of `ToolCall` requests.
#[derive(Debug)]
pub struct DelegatedCall {
    pub tool: Arc<Tool>,
    pub arguments: Map<String, Value>,
}

/// A tool, as search and lists outside the protocol show it.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Descriptor {
    /// Its name.
    pub name: String,
    /// What people call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it does.
    pub description: String,
    /// Which tools it belongs to.
    pub family: &'static str,
    /// The scope that it asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<&'static str>,
    /// What a client may assume of it.
    pub annotations: Annotations,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// The JSON schema of its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

impl Listed for Descriptor {
    const NAME: &'static str = "tools";
}

impl Catalogue {
    pub fn new(tools: impl IntoIterator<Item = Tool>) -> Self {
        let tools =
            tools.into_iter().map(|tool| (tool.name().to_owned(), Arc::new(tool))).collect();
        Self {
            tools: RwLock::new(Arc::new(tools)),
            changes: watch::Sender::new(0),
            foreign: OnceLock::new(),
            tool_call: OnceLock::new(),
        }
    }

    /// Adds the tools of child servers. Only the first call counts.
    pub fn join(&self, foreign: Arc<dyn ChildTools>) {
        self.foreign.set(foreign).ok();
        self.note_change();
    }

    /// Restricts which tools sessions reach through `ToolCall`, by globs. Only the first call
    /// counts.
    pub fn bound_tool_call(&self, globs: Vec<String>) {
        self.tool_call.set(globs).ok();
    }

    /// Whether this caller reaches a tool of that name through `ToolCall`.
    pub(super) fn is_in_tool_call(&self, caller: &Caller, name: &str) -> bool {
        let globs = self.tool_call.get().filter(|_| !caller.is_operator());
        globs.is_none_or(|globs| globs.iter().any(|glob| matches_glob(glob, name)))
    }

    /// Tells those who watch the list that it has changed.
    pub fn note_change(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub fn all(&self) -> Arc<BTreeMap<String, Arc<Tool>>> {
        Arc::clone(&self.tools.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The tool of that name, if it exists and this caller may call it.
    pub fn find(&self, caller: &Caller, name: &str) -> Option<Arc<Tool>> {
        self.named(caller, name).filter(|tool| tool.is_open_to(caller))
    }

    /// The tool of that name, whatever scope it needs.
    fn named(&self, caller: &Caller, name: &str) -> Option<Arc<Tool>> {
        let own = self.tools.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        own.or_else(|| self.foreign.get()?.offered_to(caller).get(name).cloned())
    }

    /// Like [`Self::find`], but waits up to `bound` for a server that connects for the first time
    /// to list its tools.
    pub async fn find_soon(
        &self,
        caller: &Caller,
        name: &str,
        bound: Duration,
    ) -> Option<Arc<Tool>> {
        // Subscribe before the lookup, or a change in between is missed.
        let mut changes = self.changes.subscribe();
        let deadline = Instant::now() + bound;
        loop {
            if let Some(found) = self.find(caller, name) {
                return Some(found);
            }
            if !self.foreign.get().is_some_and(|foreign| foreign.may_appear(caller, name)) {
                // The server may have listed its tools after the last check.
                return self.find(caller, name);
            }
            match timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }

    /// The call that a call of `tool` with these parameters requests; `None` if `tool` is not
    /// `ToolCall`, or if its arguments are wrong, which its own run reports. Waits for the requested
    /// tool like [`Self::find_soon`].
    pub async fn called_by(
        &self,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
        bound: Duration,
    ) -> Option<DelegatedCall> {
        let arguments = params.get("arguments").and_then(Value::as_object);
        let arguments = arguments.filter(|_| tool.name() == TOOL_CALL)?;
        let is_known = |name: &String| matches!(name.as_str(), "name" | "arguments");
        if !arguments.keys().all(is_known) {
            return None;
        }
        let name = arguments.get("name").and_then(Value::as_str).unwrap_or_default();
        self.find_soon(caller, name, bound).await;
        self.delegated(caller, arguments).ok()
    }

    /// The call that these arguments of `ToolCall` request.
    pub(super) fn delegated(
        &self,
        caller: &Caller,
        arguments: &Map<String, Value>,
    ) -> Result<DelegatedCall, ToolError> {
        let name = arguments.get("name").and_then(Value::as_str).unwrap_or_default();
        if name == TOOL_CALL {
            return Err(ToolError::invalid("name", "name: ToolCall calls other tools"));
        }
        let unknown = || {
            let shown: String = name.chars().take(80).collect();
            let message = format!(
                "name: there is no tool {shown:?} that you may call: ToolSearch finds tools"
            );
            ToolError {
                field: Some("name".to_owned()),
                ..ToolError::new(ErrorType::NotFound, message)
            }
        };
        let missing = || self.absence(caller, name).unwrap_or_else(unknown);
        let tool = self.find(caller, name).ok_or_else(missing)?;
        if !self.is_in_tool_call(caller, name) {
            let message = format!(
                "{name} is not among the tools that ToolCall reaches: a person adds it to tool_call under [sources] in \
                 config.toml, or to `listed` of its server"
            );
            return Err(ToolError::new(ErrorType::Forbidden, message));
        }
        match arguments.get("arguments") {
            None | Some(Value::Null) => Ok(DelegatedCall { tool, arguments: Map::new() }),
            Some(Value::Object(arguments)) => {
                Ok(DelegatedCall { tool, arguments: arguments.clone() })
            }
            Some(_) => Err(ToolError::invalid("arguments", "arguments: must be an object")),
        }
    }

    /// Why this caller cannot call a tool of this name: the caller lacks the scope, or the tool's
    /// server does not work. `None` if there is no such tool, and no server of the caller's can
    /// have it.
    pub fn absence(&self, caller: &Caller, name: &str) -> Option<ToolError> {
        if let Some(tool) = self.named(caller, name) {
            return tool
                .missing_scope(caller)
                .map(|scope| ToolError::needs_scope(caller, name, scope));
        }
        self.foreign.get()?.absence(caller, name)
    }

    /// The tools that this caller may call: the daemon's own by name, without unlisted ones, then
    /// those of child servers.
    pub fn open_to(&self, caller: &Caller) -> Vec<Arc<Tool>> {
        let (own, foreign) =
            (self.all(), self.foreign.get().map(|foreign| foreign.offered_to(caller)));
        let foreign = foreign.iter().flat_map(|tools| tools.values());
        let is_open = |tool: &&Arc<Tool>| tool.is_open_to(caller) && !tool.is_unlisted();
        own.values().chain(foreign).filter(is_open).cloned().collect()
    }

    pub fn everything(&self) -> Vec<Arc<Tool>> {
        let foreign = self.foreign.get().map(|foreign| foreign.all()).unwrap_or_default();
        self.all().values().cloned().chain(foreign).collect()
    }

    /// The tools that this caller is shown, by name.
    pub fn listed_to(&self, caller: &Caller, exposure: ToolExposure) -> Vec<Arc<Tool>> {
        let open = self.open_to(caller);
        match exposure {
            ToolExposure::All => open,
            ToolExposure::Search => {
                let known = |name: &&str| open.iter().any(|tool| tool.name() == *name);
                let mut short: Vec<&str> =
                    SHORT_LIST.iter().copied().filter(known).take(SHORT_LIST_MAX).collect();
                let is_listed = |tool: &&Arc<Tool>| {
                    tool.foreign_declaration().is_some_and(|declared| declared.is_listed)
                };
                let wanted = open.iter().filter(is_listed).take(LISTED_FOREIGN_MAX);
                short.extend(wanted.map(|tool| tool.name()));
                let is_short = |tool: &&Arc<Tool>| short.contains(&tool.name());
                open.iter().filter(is_short).cloned().collect()
            }
        }
    }

    /// Adds a tool; it replaces one of the same name.
    pub fn add(&self, tool: Tool) {
        let mut tools = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut tools).insert(tool.name().to_owned(), Arc::new(tool));
        drop(tools);
        self.note_change();
    }

    pub fn version(&self) -> u64 {
        *self.changes.borrow()
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The entries of `tools/list` for this caller.
    pub fn entries_for(&self, caller: &Caller, exposure: ToolExposure) -> Vec<Box<RawValue>> {
        let tools = self.listed_to(caller, exposure);
        tools.iter().map(|tool| tool.listed(exposure)).collect()
    }

    /// A hash of the tools that this caller can list or find, and of how they are exposed. It
    /// depends on nothing else, so it is the same after a restart.
    pub fn hash_for(&self, caller: &Caller, exposure: Option<ToolExposure>) -> i64 {
        let mut hash = Sha256::new();
        hash.update(exposure.map_or("", ToolExposure::as_str));
        for exposure in [ToolExposure::All, ToolExposure::Search] {
            for entry in self.entries_for(caller, exposure) {
                hash.update(entry.get());
            }
        }
        let bytes: [u8; 8] = hash.finalize()[..8].try_into().expect("a hash has more than 8 bytes");
        i64::from_be_bytes(bytes)
    }
}

impl Descriptor {
    pub fn from_tool(tool: &Tool) -> Self {
        Self {
            name: tool.name().to_owned(),
            title: tool.title_text().map(str::to_owned),
            description: tool.description().to_owned(),
            family: tool.family_name(),
            scope: tool.scope_name(),
            annotations: tool.annotations,
            input_schema: tool.input_schema().clone(),
            output_schema: tool.output_schema().cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_exposure_is_another_list_of_tools() {
        let caller = Caller::of_session("t", "s-1", None, &[]);
        let hash = |exposure| Catalogue::new([]).hash_for(&caller, exposure);
        assert_eq!(hash(None), hash(None));
        assert_ne!(hash(None), hash(Some(ToolExposure::All)));
        assert_ne!(hash(Some(ToolExposure::Search)), hash(Some(ToolExposure::All)));
    }
}
