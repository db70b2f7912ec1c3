//! `hooks.log`: what went wrong in hooks, as nobody looks at what they print. Never what a payload says.

use std::io::Write as _;
use std::path::PathBuf;

use super::super::context::Context;
use crate::config::{Env, Paths};
use crate::domain::{Clock as _, SystemClock};
use crate::private_file;

/// How long it may get, in bytes; the one before it is kept beside it.
const MOST: u64 = 256 * 1024;
/// Of one line, in characters.
const LINE: usize = 500;

/// Where it is.
#[derive(Debug, Clone)]
pub(super) struct Report(Option<PathBuf>);

impl Report {
    pub(super) fn of(context: &Context) -> Self {
        Self(Some(context.paths.home.join("hooks.log")))
    }

    /// Where it is if nothing was said of it.
    pub(super) fn here() -> Self {
        let paths = Paths::resolve(&Env::from_process(), None);
        Self(paths.ok().map(|paths| paths.home.join("hooks.log")))
    }

    /// Adds a line. What cannot be written is nobody's loss.
    pub(super) fn note(&self, what: &str, problem: &str) {
        let Some(path) = &self.0 else { return };
        let text = format!("{what}: {problem}");
        let text: String =
            text.chars().take(LINE).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = format!("{} {text}\n", SystemClock.now());
        if std::fs::metadata(path).is_ok_and(|file| file.len() > MOST) {
            std::fs::rename(path, path.with_extension("log.1")).ok();
        }
        if let Some(home) = path.parent() {
            private_file::create_folder(home).ok();
        }
        private_file::append(path).and_then(|mut file| file.write_all(line.as_bytes())).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_an_end_and_one_line_for_each_trouble() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("home/hooks.log");
        let report = Report(Some(path.clone()));
        for _ in 0..1_200 {
            report.note("claude-code Stop", &"two\nlines ".repeat(60));
        }
        let size =
            |name: &str| std::fs::metadata(folder.path().join("home").join(name)).unwrap().len();
        assert!(size("hooks.log") <= MOST + 1_000 && size("hooks.log.1") <= MOST + 1_000);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.lines().all(|line| line.contains("claude-code Stop: two lines")), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= LINE + 30));
    }
}
