use std::{borrow::Cow, cell::Cell, fmt, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use schemars::JsonSchema;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, value::MapDeserializer},
};
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use svc_model::{Caller, ToolExposure};

use super::{Call, Failure, HeaderParam, Output, ToolError, call, schema};

type ToolFunction =
    dyn Fn(Call, Map<String, Value>) -> BoxFuture<'static, Result<Output, Failure>> + Send + Sync;

/// A tool: its name, its schemas, and the function that runs it.
#[expect(clippy::struct_excessive_bools, reason = "each is declared on its own")]
pub struct Tool {
    name: Cow<'static, str>,
    title: Option<Cow<'static, str>>,
    description: Cow<'static, str>,
    family: &'static str,
    input: schema::Input,
    output: Option<Value>,
    pub annotations: Annotations,
    scope: Option<&'static str>,
    pub pace: Pace,
    needs_task: bool,
    /// Whether the result contains stamps of the daemon: then the tool quotes foreign texts itself.
    pub(super) quotes: bool,
    /// Whether it runs in turns with the heavy reads of other principals.
    is_heavy: bool,
    unlisted: bool,
    foreign: Option<Box<ForeignDeclaration>>,
    run: Arc<ToolFunction>,
}

#[derive(Debug, Clone)]
pub struct ForeignDeclaration {
    pub source: Arc<str>,
    /// The entry of `tools/list`, with the name and the description that clients see.
    pub entry: ForeignEntry,
    pub scope: Option<Arc<str>>,
    pub is_listed: bool,
}

/// An entry of `tools/list` that is passed on as its server wrote it.
#[derive(Debug, Clone)]
pub struct ForeignEntry {
    pub read: Value,
    written: Arc<RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSchemas<'a> {
    #[serde(borrow)]
    input_schema: Option<&'a RawValue>,
    #[serde(borrow)]
    output_schema: Option<&'a RawValue>,
}

impl ForeignEntry {
    pub fn new(written: Box<RawValue>) -> Self {
        let read = serde_json::from_str(written.get()).unwrap_or_default();
        Self { read, written: written.into() }
    }

    fn schemas(&self) -> WrittenSchemas<'_> {
        serde_json::from_str(self.written.get()).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Fast,
    /// It may wait for minutes: its response is a stream that can be resumed, or a task.
    Slow,
}

/// What a client may assume of a tool (MCP `ToolAnnotations`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "the protocol has them so")]
pub struct Annotations {
    /// It changes nothing.
    pub read_only_hint: bool,
    /// It may remove something, or what it does cannot be undone.
    pub destructive_hint: bool,
    /// Once more with the same arguments changes nothing further.
    pub idempotent_hint: bool,
    /// It reaches beyond the daemon.
    pub open_world_hint: bool,
}

impl Annotations {
    /// Those that differ from the defaults of the protocol.
    fn in_short(self) -> Value {
        let mut short = Map::new();
        for (name, is, supposed) in [
            ("readOnlyHint", self.read_only_hint, false),
            ("destructiveHint", self.destructive_hint, true),
            ("idempotentHint", self.idempotent_hint, false),
            ("openWorldHint", self.open_world_hint, true),
        ] {
            // A read-only tool is neither destructive nor non-idempotent, so these hints follow
            // from it.
            let follows =
                self.read_only_hint && matches!(name, "destructiveHint" | "idempotentHint");
            if is != supposed && !follows {
                short.insert(name.to_owned(), is.into());
            }
        }
        short.into()
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tool {
    /// A tool with arguments `A` and result `R`, each a struct.
    ///
    /// The first line of `description` is for people in a list; models read all of it. By default,
    /// the tool is fast, changes something, and destroys nothing.
    pub fn new<A, R, F, Fut>(name: &'static str, description: &'static str, run: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send,
        R: Serialize + JsonSchema,
        F: Fn(Call, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        let run = move |call: Call, arguments: A| {
            let running = run(call, arguments);
            async move { Output::from_result(&running.await?) }
        };
        let output = Some(schema::of_result::<R>());
        Self { output, ..Self::with_content(name, description, run) }
    }

    /// A tool with its own schema and content.
    ///
    /// If `input` is not a JSON schema, every call fails.
    pub fn raw<F, Fut>(
        name: impl Into<Cow<'static, str>>,
        description: impl Into<Cow<'static, str>>,
        input: Value,
        run: F,
    ) -> Self
    where
        F: Fn(Call, Map<String, Value>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Output, Failure>> + Send + 'static,
    {
        let input = schema::Input::from_json(input);
        let run = move |call, arguments| run(call, arguments).boxed();
        Self::bare(name.into(), description.into(), input, Arc::new(run))
    }

    /// A tool of a child server. That server checks the arguments, and its results are passed on
    /// unchanged.
    pub fn foreign<F, Fut>(declaration: ForeignDeclaration, run: F) -> Self
    where
        F: Fn(Call, Map<String, Value>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Output, Failure>> + Send + 'static,
    {
        let text = |name: &str| {
            declaration.entry.read.get(name).and_then(Value::as_str).map(str::to_owned)
        };
        let hints = declaration.entry.read.get("annotations");
        let hint = |name: &str| hints.and_then(|hints| hints.get(name)).and_then(Value::as_bool);
        let read_only = hint("readOnlyHint").unwrap_or(false);
        let annotations = Annotations {
            read_only_hint: read_only,
            destructive_hint: hint("destructiveHint").unwrap_or(!read_only),
            idempotent_hint: hint("idempotentHint").unwrap_or(false),
            open_world_hint: hint("openWorldHint").unwrap_or(true),
        };
        let title = text("title").or_else(|| {
            hints.and_then(|hints| hints.get("title")).and_then(Value::as_str).map(str::to_owned)
        });
        let input = declaration.entry.read.get("inputSchema").cloned().unwrap_or_default();
        let run = move |call, arguments| run(call, arguments).boxed();
        let bare = Self::bare(
            text("name").unwrap_or_default().into(),
            text("description").unwrap_or_default().into(),
            schema::Input::from_json(input),
            Arc::new(run),
        );
        Self {
            title: title.map(Cow::Owned),
            family: "sources",
            annotations,
            output: declaration.entry.read.get("outputSchema").cloned(),
            // The daemon does not know how long the server takes.
            pace: Pace::Slow,
            foreign: Some(Box::new(declaration)),
            ..bare
        }
    }

    /// A tool with arguments `A` whose result is content. See [`Tool::new`].
    pub fn with_content<A, F, Fut>(name: &'static str, description: &'static str, run: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send,
        F: Fn(Call, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Output, Failure>> + Send + 'static,
    {
        // The compiler instantiates this closure for each tool, so it is small: the arguments are
        // parsed before the future begins.
        let run = move |call: Call, arguments: Map<String, Value>| {
            let running = read::<A>(&arguments).map(|arguments| run(call, arguments));
            async move { running?.await }.boxed()
        };
        Self::bare(name.into(), description.into(), schema::Input::from_type::<A>(), Arc::new(run))
    }

    /// Declares it as a tool of a built-in server. Arguments are checked, and results are passed on
    /// unchanged: the content of a file or the output of a command is not quoted, as with any other
    /// server.
    #[must_use]
    pub fn of_builtin_server(self, source: &str, is_listed: bool) -> Self {
        let declaration = ForeignDeclaration {
            source: source.into(),
            entry: ForeignEntry::new(self.listed(ToolExposure::All)),
            scope: self.scope.map(Arc::from),
            is_listed,
        };
        let Self { input, run, .. } = self;
        let input = Arc::new(input);
        Self::foreign(declaration, move |call, mut arguments| {
            let (input, run) = (Arc::clone(&input), Arc::clone(&run));
            async move {
                input.check(&mut arguments)?;
                run(call, arguments).await
            }
        })
    }

    fn bare(
        name: Cow<'static, str>,
        description: Cow<'static, str>,
        input: schema::Input,
        run: Arc<ToolFunction>,
    ) -> Self {
        Self {
            name,
            title: None,
            description,
            family: "other",
            input,
            output: None,
            annotations: Annotations::default(),
            scope: None,
            pace: Pace::Fast,
            needs_task: false,
            quotes: false,
            is_heavy: false,
            unlisted: false,
            foreign: None,
            run,
        }
    }

    #[must_use]
    pub fn title(self, title: &'static str) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    #[must_use]
    pub(super) fn result(self, output: Value) -> Self {
        Self { output: Some(output), ..self }
    }

    #[must_use]
    pub fn family(self, family: &'static str) -> Self {
        Self { family, ..self }
    }

    /// It changes nothing, and so is idempotent.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.annotations.read_only_hint = true;
        self.idempotent()
    }

    /// A repeat with the same arguments changes nothing further. If the daemon stops during such a
    /// call, the next daemon runs it again.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.annotations.idempotent_hint = true;
        self
    }

    #[must_use]
    pub fn destructive(mut self) -> Self {
        self.annotations.destructive_hint = true;
        self
    }

    /// It reads and renders much, and never waits.
    #[must_use]
    pub fn heavy(self) -> Self {
        Self { is_heavy: true, ..self }
    }

    #[must_use]
    pub fn slow(self) -> Self {
        Self { pace: Pace::Slow, ..self }
    }

    /// Clients of the stateless revisions can call it only as a task.
    #[must_use]
    pub fn needs_task(self) -> Self {
        Self { needs_task: true, ..self }
    }

    /// Its result contains stamps of the daemon, so it quotes foreign texts itself.
    #[must_use]
    pub(super) fn quotes_itself(self) -> Self {
        Self { quotes: true, ..self }
    }

    /// It is in no list and no search: programs know it, or it is listed under another name.
    #[must_use]
    pub(super) fn unlisted(self) -> Self {
        Self { unlisted: true, ..self }
    }

    #[must_use]
    pub fn scope(self, scope: &'static str) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// Its name: letters, digits, `_`, `-`, `.`, at most 64.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn title_text(&self) -> Option<&str> {
        self.title.as_deref()
    }

    pub fn description(&self) -> &str {
        &self.description
    }

    /// The child server that has it; `None` for the daemon's own.
    pub fn source_name(&self) -> Option<&str> {
        self.server().or_else(|| self.name.split_once("__").map(|(source, _)| source))
    }

    fn server(&self) -> Option<&str> {
        self.foreign.as_ref().map(|foreign| &*foreign.source)
    }

    pub fn family_name(&self) -> &'static str {
        self.family
    }

    pub fn input_schema(&self) -> &Value {
        &self.input.json
    }

    pub fn output_schema(&self) -> Option<&Value> {
        self.output.as_ref()
    }

    pub fn scope_name(&self) -> Option<&'static str> {
        self.scope
    }

    pub fn is_task_only(&self) -> bool {
        self.needs_task
    }

    /// Whether it may be repeated after an unknown outcome.
    pub fn is_repeatable(&self) -> bool {
        self.annotations.idempotent_hint || self.annotations.read_only_hint
    }

    /// Arguments that a header repeats.
    pub fn header_params(&self) -> &[HeaderParam] {
        &self.input.headers
    }

    pub fn is_unlisted(&self) -> bool {
        self.unlisted
    }

    pub fn is_open_to(&self, caller: &Caller) -> bool {
        self.missing_scope(caller).is_none()
    }

    /// The scope that this caller lacks; `None` if the caller may call it.
    pub fn missing_scope(&self, caller: &Caller) -> Option<&str> {
        let foreign = self.foreign.as_ref().and_then(|foreign| foreign.scope.as_deref());
        self.scope.or(foreign).filter(|scope| !caller.has_scope(scope))
    }

    /// The declaration, if it is a child server's tool.
    pub fn foreign_declaration(&self) -> Option<&ForeignDeclaration> {
        self.foreign.as_deref()
    }

    /// Its entry in `tools/list`. That of a child server's tool is as the server wrote it.
    pub fn listed(&self, exposure: ToolExposure) -> Box<RawValue> {
        match &self.foreign {
            Some(foreign) => foreign.entry.written.as_ref().to_owned(),
            None => raw_value(&self.entry(exposure)),
        }
    }

    /// The JSON schemas of its arguments and of its result, as written.
    pub fn written_schemas(&self) -> (Box<RawValue>, Option<Box<RawValue>>) {
        if let Some(foreign) = &self.foreign {
            let WrittenSchemas { input_schema, output_schema } = foreign.entry.schemas();
            let input = input_schema.map(ToOwned::to_owned).unwrap_or_default();
            return (input, output_schema.map(ToOwned::to_owned));
        }
        (raw_value(&self.input.json), self.output.as_ref().map(raw_value))
    }

    /// Its entry in `tools/list`, parsed.
    pub(super) fn entry(&self, exposure: ToolExposure) -> Value {
        if let Some(foreign) = &self.foreign {
            return foreign.entry.read.clone();
        }
        if exposure == ToolExposure::Search {
            return json!({
                "name": self.name,
                "description": self.description,
                "inputSchema": schema::brief(&self.input.json),
                "annotations": self.annotations.in_short(),
            });
        }
        let mut entry = json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input.json,
            "annotations": self.annotations,
        });
        if let Some(title) = &self.title {
            entry["title"] = json!(title);
            entry["annotations"]["title"] = json!(title);
        }
        if let Some(output) = &self.output {
            entry["outputSchema"] = output.clone();
        }
        entry
    }

    /// Checks the arguments and runs the tool. A panic is an internal error. The result is for a
    /// model, so foreign texts in it are made [plain](svc_model::quote::plain).
    pub async fn call(
        &self,
        call: Call,
        mut arguments: Map<String, Value>,
    ) -> Result<Output, Failure> {
        let is_through_tool_call = call::is_through_tool_call(&call);
        let run = async {
            if self.foreign.is_some() {
                return (self.run)(call, arguments).await;
            }
            self.input.check(&mut arguments)?;
            let (services, caller) = (call.services.clone(), call.caller.clone());
            let (run, quotes) = ((self.run)(call, arguments), self.quotes);
            let run = async move { run.await.map(|it| if quotes { it } else { it.plain() }) };
            if self.is_heavy { services.read_in_turn(&caller, run).await } else { run.await }
        };
        let run = std::panic::AssertUnwindSafe(run);
        let outcome = run.catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!(tool = self.name(), "a tool panicked");
            Err(ToolError::internal().into())
        });
        if is_through_tool_call {
            return outcome.map(|output| call::named(output, self.server(), self.name()));
        }
        outcome
    }
}

fn raw_value(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("a value has a JSON form")
}

/// Parses the arguments. The schema has checked them; the error of any other fault names its
/// argument.
fn read<A: DeserializeOwned>(arguments: &Map<String, Value>) -> Result<A, ToolError> {
    // Tracks only the name of the argument. A path into the argument would double the code of every
    // tool, for a rare error.
    let current = Cell::new("arguments");
    let parse = |without: Option<&String>| -> Result<A, serde_json::Error> {
        let others = arguments.iter().filter(|(name, _)| Some(*name) != without);
        let entries = others.map(|(name, value)| {
            current.set(name.as_str());
            (name.as_str(), value)
        });
        A::deserialize(MapDeserializer::new(entries))
    };
    parse(None).map_err(|error| {
        let last = current.get();
        // Flattened fields are read after the last argument, so any argument may be the wrong one.
        let wrong = arguments.keys().find(|name| parse(Some(name)).is_ok());
        let field = wrong.map_or(last, String::as_str);
        ToolError::invalid(field, format!("{field}: {error}"))
    })
}
