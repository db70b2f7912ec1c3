//! What a request may set of an agent that it starts. The rule stands here and nowhere else:
//! `POST /v1/hosts`, `SendMessage`, `sessions_spawn` and `POST /v1/send_message` ask the same
//! [`StartAllowance`].

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use globset::GlobBuilder;

/// Variables by which whoever sets them runs code of his own in any program, or gets a program's
/// keys sent to him.
const NEVER: [&str; 11] = [
    "BASH_ENV",
    "ENV",
    "NODE_OPTIONS",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PERL5OPT",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "GIT_SSH_COMMAND",
    "PATH",
    "HOME",
];
const NEVER_PREFIXES: [&str; 3] = ["LD_", "DYLD_", "BASH_FUNC_"];
const NEVER_SUFFIX: &str = "_BASE_URL";

/// Whether no request sets this variable, the operator's neither. A person writes it into `env` of
/// the configuration.
fn is_never_set_by_request(variable: &str) -> bool {
    NEVER.contains(&variable)
        || NEVER_PREFIXES.iter().any(|prefix| variable.starts_with(prefix))
        || variable.ends_with(NEVER_SUFFIX)
}

/// What an instance lets the requests of session tokens set. Nothing, unless its entry says
/// otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartAllowance {
    /// Names of variables.
    pub env: Vec<String>,
    /// Globs, each of which matches one whole argument.
    pub args: Vec<String>,
    /// Folders, with all that is below them.
    pub folders: Vec<PathBuf>,
}

/// Who asks for an agent.
#[derive(Debug, Clone, Copy)]
pub enum StartRequester<'a> {
    /// The operator, whom an instance's allowance does not bind.
    Operator,
    /// A session, with the real path of its project, if it has one.
    Session(Option<&'a Path>),
}

/// What a request sets of an agent.
#[derive(Debug, Clone, Copy)]
pub struct StartSettings<'a> {
    /// Variables.
    pub env: &'a BTreeMap<String, String>,
    /// Arguments.
    pub args: &'a [String],
    /// Real path of the folder, without links; `None` if the request does not choose it.
    pub folder: Option<&'a Path>,
}

/// Why a request does not start the agent that it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// Nobody's request sets this variable.
    #[error(
        "no request sets the variable {0}, as it runs code in other programs or leads them elsewhere; a person may write it \
         into `env` of the instance"
    )]
    NeverSet(String),
    /// The instance does not allow this variable.
    #[error("env.{0}: the instance's `allow_env` does not name this variable")]
    Variable(String),
    /// The instance does not allow this argument.
    #[error("args: no glob of the instance's `allow_args` matches {0:?}")]
    Argument(String),
    /// The folder is in none that the session may use.
    #[error(
        "cwd: {0} is not in the caller's project, and the instance's `allow_cwd` does not name it"
    )]
    Folder(String),
}

impl StartAllowance {
    /// What is wrong with it: the key, and why.
    ///
    /// # Errors
    /// The first of its faults.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for variable in &self.env {
            if variable.is_empty() || variable.contains(['=', '\0']) {
                return Err(("allow_env", format!("{variable:?} is not the name of a variable")));
            }
            if is_never_set_by_request(variable) {
                let why = format!(
                    "no request may set {variable}: write it into `env`, if it is to be set"
                );
                return Err(("allow_env", why));
            }
        }
        for glob in &self.args {
            whole_argument(glob).map_err(|error| ("allow_args", format!("{glob:?}: {error}")))?;
        }
        Ok(())
    }

    /// Whether a request may set this.
    ///
    /// # Errors
    /// The first thing that it may not set.
    pub fn permits(
        &self,
        requester: StartRequester<'_>,
        settings: &StartSettings<'_>,
    ) -> Result<(), StartRefusal> {
        if let Some(name) = settings.env.keys().find(|name| is_never_set_by_request(name)) {
            return Err(StartRefusal::NeverSet(name.clone()));
        }
        let StartRequester::Session(project) = requester else { return Ok(()) };
        if let Some(name) = settings.env.keys().find(|name| !self.env.contains(name)) {
            return Err(StartRefusal::Variable(name.clone()));
        }
        // A glob that does not compile matches nothing; `check` has refused it long before.
        let globs: Vec<_> = self.args.iter().filter_map(|glob| whole_argument(glob).ok()).collect();
        let is_allowed = |arg: &&String| globs.iter().any(|glob| glob.is_match(arg.as_str()));
        if let Some(arg) = settings.args.iter().find(|arg| !is_allowed(arg)) {
            return Err(StartRefusal::Argument(arg.clone()));
        }
        let Some(folder) = settings.folder else { return Ok(()) };
        let mut allowed = project.into_iter().chain(self.folders.iter().map(PathBuf::as_path));
        if allowed.any(|allowed| folder.starts_with(allowed)) {
            return Ok(());
        }
        Err(StartRefusal::Folder(folder.display().to_string()))
    }
}

fn whole_argument(glob: &str) -> Result<globset::GlobMatcher, globset::Error> {
    Ok(GlobBuilder::new(glob).literal_separator(false).build()?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(names: &[&str]) -> BTreeMap<String, String> {
        names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect()
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    const OWN: StartRequester<'_> = StartRequester::Session(None);

    #[test]
    fn variables_by_table() {
        let allowance =
            StartAllowance { env: words(&["REVIEW", "review"]), ..StartAllowance::default() };
        for (name, for_session, for_operator) in [
            ("REVIEW", true, true),
            ("review", true, true),
            ("Review", false, true),
            ("REVIEW2", false, true),
            ("SVC_HOME", false, true),
            ("LD_PRELOAD", false, false),
            ("LD_LIBRARY_PATH", false, false),
            ("LDFLAGS", false, true),
            ("DYLD_INSERT_LIBRARIES", false, false),
            ("BASH_ENV", false, false),
            ("ENV", false, false),
            ("ENVIRONMENT", false, true),
            ("BASH_FUNC_read%%", false, false),
            ("BASH_FUNC_read()", false, false),
            ("NODE_OPTIONS", false, false),
            ("PYTHONPATH", false, false),
            ("PYTHONSTARTUP", false, false),
            ("PERL5OPT", false, false),
            ("RUBYOPT", false, false),
            ("JAVA_TOOL_OPTIONS", false, false),
            ("GIT_SSH_COMMAND", false, false),
            ("PATH", false, false),
            ("HOME", false, false),
            ("ANTHROPIC_BASE_URL", false, false),
            ("_BASE_URL", false, false),
            ("BASE_URL_OF", false, true),
        ] {
            let env = variables(&[name]);
            let settings = StartSettings { env: &env, args: &[], folder: None };
            assert_eq!(allowance.permits(OWN, &settings).is_ok(), for_session, "{name}");
            let operator = allowance.permits(StartRequester::Operator, &settings);
            assert_eq!(operator.is_ok(), for_operator, "{name}");
            let named = StartAllowance { env: words(&[name]), ..StartAllowance::default() };
            assert_eq!(named.check().is_ok(), for_operator, "allow_env = [{name:?}]");
        }
        for name in ["", "A=B", "A\0"] {
            let wrong = StartAllowance { env: words(&[name]), ..StartAllowance::default() };
            assert_eq!(wrong.check().unwrap_err().0, "allow_env");
        }
    }

    #[test]
    fn a_glob_matches_one_whole_argument() {
        let allow = |globs: &[&str]| StartAllowance { args: words(globs), ..Default::default() };
        let empty = BTreeMap::new();
        for (globs, args, is_allowed) in [
            (&[][..], &[][..], true),
            (&[], &["--model=opus"], false),
            (&["--model=*"], &["--model=opus"], true),
            (&["--model=*"], &["--model=a/b"], true),
            (&["--model=*"], &["--model=opus", "--verbose"], false),
            (&["--model=*"], &["--model", "opus"], false),
            (&["--model=*"], &["x--model=opus"], false),
            (&["--model=opus"], &["--model=opus2"], false),
            (&["--model=[a-z]*", "-v"], &["-v", "--model=x"], true),
            (&["--model=?"], &["--model=xy"], false),
            (&["*.md"], &["docs/\nx.md"], true),
        ] {
            let args = words(args);
            let settings = StartSettings { env: &empty, args: &args, folder: None };
            assert_eq!(
                allow(globs).permits(OWN, &settings).is_ok(),
                is_allowed,
                "{globs:?} {args:?}"
            );
            assert_eq!(allow(globs).permits(StartRequester::Operator, &settings), Ok(()));
        }
        assert_eq!(allow(&["a[b"]).check().unwrap_err().0, "allow_args");
        allow(&["*", "--x=*"]).check().unwrap();
    }

    #[test]
    fn folders_are_those_of_the_project_and_those_that_are_named() {
        let allowance =
            StartAllowance { folders: vec![PathBuf::from("/lib/one")], ..Default::default() };
        let empty = BTreeMap::new();
        for (project, folder, is_allowed) in [
            (Some("/p"), Some("/p"), true),
            (Some("/p"), Some("/p/src"), true),
            (Some("/p"), Some("/p2"), false),
            (Some("/p"), Some("/"), false),
            (Some("/p"), Some("/lib/one/two"), true),
            (Some("/p"), Some("/lib"), false),
            (Some("/p"), None, true),
            (None, Some("/p"), false),
            (None, Some("/lib/one"), true),
            (None, None, true),
        ] {
            let settings = StartSettings { env: &empty, args: &[], folder: folder.map(Path::new) };
            let requester = StartRequester::Session(project.map(Path::new));
            let permitted = allowance.permits(requester, &settings);
            assert_eq!(permitted.is_ok(), is_allowed, "{project:?} {folder:?}");
            assert_eq!(allowance.permits(StartRequester::Operator, &settings), Ok(()));
        }
    }
}
