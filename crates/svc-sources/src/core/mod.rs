//! The built-in server `core`: its tools, their callers and their folders.
//!
//! `folder` bounds a caller's paths; `files`, `find`, `bash` and `fetch` have the tools.

mod bash;
mod fetch;
mod files;
mod find;
mod folder;

pub use fetch::{CONVERTER, convert_page};

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use svc_core::{
    service::Services,
    tools::{Call, Failure, Tool, ToolError},
};
use svc_model::{
    EXEC_SCOPE, READ_SCOPE,
    source::{BUILTIN_CORE, SourceEntry, SourceTransport, matches_glob},
};
use svc_sys::config::Env;
use tokio_util::sync::CancellationToken;

use self::{
    bash::{BashArguments, BashKillArguments, BashOutputArguments, Shell, ShellCommand},
    fetch::{FetchArguments, fetch},
    files::{EditArguments, ReadArguments, ReadFiles, WriteArguments, edit, read, write},
    find::{GlobArguments, GrepArguments, glob, grep},
    folder::FolderBounds,
};

const BASH: &str = "\
Runs a command of the shell, in the session's folder.

Its output is standard output and error output together, at most 1 MiB. An exit code that is not 0 is no failure of the tool. After \
timeout_ms the command and all that it started are killed. With background it returns a task_id at once.";
const BASH_OUTPUT: &str = "\
Reads on what a command in the background has written.

Give next_after of one answer as after of the next.";
const BASH_KILL: &str = "Ends a command in the background, with all that it started.";
const READ_TEXT: &str = "\
Reads a file: text, or an image.

Without a range at most 2,000 lines.";
const WRITE_TEXT: &str = "\
Writes a file, whole or not at all.

A file that is there is replaced, and keeps its permissions.";
const EDIT_TEXT: &str = "\
Replaces text in a file that this session has read.

old_string must be in the file exactly as given, and once unless replace_all. A file that has changed since this session read \
or wrote it is left alone.";
const GREP_TEXT: &str = "\
Searches files for a regular expression.

Files that .gitignore names, hidden ones and binary ones are left out.";
const GLOB_TEXT: &str = "Finds files by a glob over their paths.";
const FETCH_TEXT: &str = "\
Fetches a page of the web; HTML as markdown.

Private addresses are refused.";

/// The built-in server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CoreServer(Arc<CoreState>);

#[derive(Debug)]
struct CoreState {
    shell: Shell,
    seen: ReadFiles,
    /// Closed to file tools, whatever the roots are: a caller that reads the operator's token
    /// becomes the operator.
    closed: Arc<[PathBuf]>,
}

#[derive(Debug)]
struct CoreRules {
    roots: Vec<PathBuf>,
    closed: Arc<[PathBuf]>,
    allow_private: bool,
    /// The environment of commands.
    env: Vec<(String, String)>,
}

/// Runs blocking work, whose token is cancelled when its caller is gone.
async fn on_disk<R: Send + 'static>(
    work: impl FnOnce(CancellationToken) -> Result<R, ToolError> + Send + 'static,
) -> Result<R, Failure> {
    let gone = CancellationToken::new();
    let _caller = gone.clone().drop_guard();
    match tokio::task::spawn_blocking(move || work(gone)).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(ToolError::internal().into()),
    }
}

impl CoreServer {
    /// `private` are the daemon's own files and folders, which are closed to file tools.
    pub(crate) fn new(services: Services, private: Vec<PathBuf>) -> Self {
        let mut closed = private;
        // Environment and memory of processes, the daemon's own among them.
        closed.push(PathBuf::from("/proc"));
        let (shell, seen) = (Shell::new(services), ReadFiles::default());
        Self(Arc::new(CoreState { shell, seen, closed: closed.into() }))
    }

    pub(crate) async fn finish(&self) {
        self.0.shell.finish().await;
    }

    pub(crate) fn sessions(&self) -> HashSet<String> {
        self.0.shell.sessions()
    }

    pub(crate) fn end_session(&self, session: &str) {
        self.0.shell.end_session(session);
    }

    /// The tools that an entry allows. `env` is the daemon's environment.
    pub(crate) fn tools(&self, entry: &SourceEntry, env: &Env) -> Vec<Tool> {
        let SourceTransport::Builtin { roots, allow_private, .. } = &entry.transport else {
            return Vec::new();
        };
        let rules = Arc::new(CoreRules {
            roots: roots.iter().map(PathBuf::from).collect(),
            closed: Arc::clone(&self.0.closed),
            allow_private: *allow_private,
            env: crate::spec::inherited_variables(entry, env),
        });
        let shown = self.all(&rules).into_iter().filter(|tool| entry.shows(tool.name()));
        let shown = shown.map(|tool| {
            let is_listed = entry.listed.iter().any(|glob| matches_glob(glob, tool.name()));
            tool.of_builtin_server(BUILTIN_CORE, is_listed)
        });
        shown.collect()
    }

    fn tool<A, R, F, Fut>(
        &self,
        rules: &Arc<CoreRules>,
        (name, description): (&'static str, &'static str),
        run: F,
    ) -> Tool
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: Serialize + JsonSchema,
        F: Fn(CoreCall, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        let (server, rules) = (self.clone(), Arc::clone(rules));
        Tool::new(name, description, move |call, input| run(server.call(&rules, call), input))
    }

    fn call(&self, rules: &Arc<CoreRules>, call: Call) -> CoreCall {
        CoreCall { state: Arc::clone(&self.0), rules: Arc::clone(rules), call }
    }

    fn all(&self, rules: &Arc<CoreRules>) -> Vec<Tool> {
        let bash = self.tool(rules, ("Bash", BASH), async |core, input: BashArguments| {
            let cwd = core.bounds().await?.folder(input.cwd.as_deref())?.path;
            let mut env = core.rules.env.clone();
            env.push(("PWD".to_owned(), cwd.display().to_string()));
            let command = ShellCommand { command: input.command.clone(), cwd, env };
            Ok(if input.background.unwrap_or(false) {
                let session = core.call.session.as_deref().or(core.call.caller.session());
                let session = session.map(str::to_owned);
                core.state.shell.run_in_background(core.owner(), session, command).await?
            } else {
                core.state.shell.run(command, &input).await?
            })
        });
        let output = ("BashOutput", BASH_OUTPUT);
        let output = self.tool(rules, output, async |core, input: BashOutputArguments| {
            Ok(core.state.shell.output(&core.owner(), &input)?)
        });
        let kill = ("BashKill", BASH_KILL);
        let kill = self.tool(rules, kill, async |core, input: BashKillArguments| {
            Ok(core.state.shell.kill(&core.owner(), input).await?)
        });
        let write = self.tool(rules, ("Write", WRITE_TEXT), async |core, input: WriteArguments| {
            let (bounds, owner) = (core.bounds().await?, core.owner());
            on_disk(move |_| write(&bounds, &core.state.seen, &owner, &input)).await
        });
        let edit = self.tool(rules, ("Edit", EDIT_TEXT), async |core, input: EditArguments| {
            let (bounds, owner) = (core.bounds().await?, core.owner());
            on_disk(move |_| edit(&bounds, &core.state.seen, &owner, &input)).await
        });
        let grep = self.tool(rules, ("Grep", GREP_TEXT), async |core, input: GrepArguments| {
            let bounds = core.bounds().await?;
            on_disk(move |gone| grep(&bounds, &input, gone)).await
        });
        let glob = self.tool(rules, ("Glob", GLOB_TEXT), async |core, input: GlobArguments| {
            let bounds = core.bounds().await?;
            on_disk(move |gone| glob(&bounds, &input, gone)).await
        });
        let fetch =
            self.tool(rules, ("WebFetch", FETCH_TEXT), async |core, input: FetchArguments| {
                Ok(fetch(&input, core.rules.allow_private).await?)
            });
        vec![
            bash.title("Run a command").scope(EXEC_SCOPE).destructive(),
            output.title("Read a command's output").scope(EXEC_SCOPE).read_only(),
            kill.title("End a command").scope(EXEC_SCOPE).idempotent(),
            self.read(rules).title("Read a file").scope(READ_SCOPE).read_only(),
            write.title("Write a file").scope(EXEC_SCOPE).destructive().idempotent(),
            edit.title("Edit a file").scope(EXEC_SCOPE).destructive(),
            grep.title("Search files").scope(READ_SCOPE).read_only(),
            glob.title("Find files").scope(READ_SCOPE).read_only(),
            fetch.title("Fetch a page").scope(EXEC_SCOPE).read_only(),
        ]
    }

    /// Returns text or an image, so it has no output schema.
    fn read(&self, rules: &Arc<CoreRules>) -> Tool {
        let (server, rules) = (self.clone(), Arc::clone(rules));
        Tool::with_content("Read", READ_TEXT, move |call: Call, input: ReadArguments| {
            let core = server.call(&rules, call);
            async move {
                let (bounds, owner) = (core.bounds().await?, core.owner());
                on_disk(move |_| read(&bounds, &core.state.seen, &owner, &input)).await
            }
        })
    }
}

struct CoreCall {
    state: Arc<CoreState>,
    rules: Arc<CoreRules>,
    call: Call,
}

impl CoreCall {
    /// The session whose state the call shares.
    fn owner(&self) -> String {
        let principal = self.call.caller.principal().to_string();
        match &self.call.session {
            Some(session) => format!("{principal} {session}"),
            None => principal,
        }
    }

    /// The bounds of the caller's paths.
    async fn bounds(&self) -> Result<FolderBounds, Failure> {
        let folder = folder_of(&self.call).await?;
        let project = self.call.caller.root().map(str::to_owned);
        let (roots, closed) = (self.rules.roots.clone(), Arc::clone(&self.rules.closed));
        on_disk(move |_| {
            let bounds = FolderBounds::new(folder.as_deref().map(Path::new), &roots, &closed)?;
            if let (Some(project), true) = (&project, roots.is_empty()) {
                bounds.check_within(Path::new(project))?;
            }
            Ok(bounds)
        })
        .await
    }
}

/// The folder of a caller, in which its session works. For the operator it is the root of the
/// project of the session that the call names.
async fn folder_of(call: &Call) -> Result<Option<String>, Failure> {
    if !call.caller.is_operator() {
        return Ok(call.caller.folder().map(str::to_owned));
    }
    let Some(session) = &call.session else { return Ok(None) };
    match call.services.team.session_detail(&call.caller, session).await {
        Ok(detail) => match detail.session.project {
            Some(project) => Ok(call.services.projects.root(&project, None).await?),
            None => Ok(None),
        },
        Err(svc_core::service::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
