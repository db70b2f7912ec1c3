//! `hooks.log`: what went wrong in hooks, whose standard error nobody reads. It never has a
//! payload's text.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use svc_model::{Clock as _, SystemClock};
use svc_sys::config::{Env, Paths};
use svc_sys::private_file;

use crate::cli::context::Context;

/// Size in bytes at which a new file begins; the one before it is kept beside it.
const MAX_BYTES: u64 = 256 * 1024;
/// Longest line, in characters.
const MAX_LINE: usize = 500;

/// The file, if the data folder is known.
#[derive(Debug, Clone)]
pub(super) struct HookLog(Option<PathBuf>);

impl HookLog {
    /// The log in the data folder of a command.
    pub(super) fn new(context: &Context) -> Self {
        Self(Some(context.paths.home.join("hooks.log")))
    }

    /// The log in the data folder that the environment names, for a command line that cannot be
    /// read.
    pub(super) fn in_default_home() -> Self {
        Self::in_home(None)
    }

    /// The log in this data folder, or in the one that the environment names.
    pub(super) fn in_home(home: Option<&Path>) -> Self {
        let paths = Paths::resolve(&Env::from_process(), home);
        Self(paths.ok().map(|paths| paths.home.join("hooks.log")))
    }

    /// Adds a line. A failure to write it is ignored.
    pub(super) fn note(&self, topic: &str, problem: &str) {
        let Some(path) = &self.0 else { return };
        let text = format!("{topic}: {problem}");
        let text: String =
            text.chars().take(MAX_LINE).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = format!("{} {text}\n", SystemClock.now());
        if std::fs::metadata(path).is_ok_and(|file| file.len() > MAX_BYTES) {
            std::fs::rename(path, path.with_extension("log.1")).ok();
        }
        let prepared = path.parent().map_or(Ok(()), private_file::prepare_home);
        prepared
            .and_then(|()| private_file::append(path))
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_an_end_and_one_line_for_each_trouble() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("home/hooks.log");
        let log = HookLog(Some(path.clone()));
        for _ in 0..1_200 {
            log.note("claude-code Stop", &"two\nlines ".repeat(60));
        }
        let size =
            |name: &str| std::fs::metadata(folder.path().join("home").join(name)).unwrap().len();
        assert!(size("hooks.log") <= MAX_BYTES + 1_000 && size("hooks.log.1") <= MAX_BYTES + 1_000);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.lines().all(|line| line.contains("claude-code Stop: two lines")), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= MAX_LINE + 30));
    }
}
