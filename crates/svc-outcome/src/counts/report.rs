//! What the output of a run says, whichever tool wrote it.

/// What an output says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunReport {
    pub(crate) passed: Option<u64>,
    pub(crate) failed: Option<u64>,
    /// Tests that could not be run to their end, as far as the tool counts them apart from failures.
    pub(crate) errors: u64,
    pub(crate) skipped: Option<u64>,
    /// What compilers and linters found.
    pub(crate) problems: u64,
    pub(crate) warnings: u64,
    /// The first that failed, by name, or the first problem.
    pub(crate) first: Option<String>,
    /// It says that it failed, without a count.
    pub(crate) broken: Option<String>,
    /// It says that all is well, without a count.
    pub(crate) fine: bool,
    /// It says that there was nothing to run.
    pub(crate) nothing: bool,
    /// It says that somebody stopped it.
    pub(crate) stopped: bool,
}

impl RunReport {
    /// Whether it says that something failed.
    pub(crate) fn shows_failure(&self) -> bool {
        self.failed.unwrap_or(0) + self.errors + self.problems > 0 || self.broken.is_some()
    }

    /// Whether it says that all that was run went well, and that something was.
    pub(crate) fn shows_success(&self) -> bool {
        !self.shows_failure() && (self.passed.unwrap_or(0) > 0 || self.fine)
    }

    /// Whether it says that nothing was run.
    pub(crate) fn shows_nothing(&self) -> bool {
        !self.shows_failure() && !self.shows_success() && (self.nothing || self.passed == Some(0))
    }

    pub(super) fn says_something(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn count(&mut self, passed: u64, failed: u64, errors: u64, skipped: u64) {
        add(&mut self.passed, passed);
        add(&mut self.failed, failed);
        add(&mut self.skipped, skipped);
        self.errors = self.errors.saturating_add(errors);
    }

    pub(super) fn first(&mut self, name: &str) {
        if self.first.is_none() && !name.trim().is_empty() {
            self.first = Some(name.trim().to_owned());
        }
    }

    pub(super) fn broken(&mut self, why: &str) {
        if self.broken.is_none() {
            self.broken = Some(why.trim().to_owned());
        }
    }

    /// Takes in what another tool said in the same output.
    pub(super) fn join(&mut self, other: Self) {
        for (own, others) in [
            (&mut self.passed, other.passed),
            (&mut self.failed, other.failed),
            (&mut self.skipped, other.skipped),
        ] {
            if let Some(count) = others {
                add(own, count);
            }
        }
        self.errors = self.errors.saturating_add(other.errors);
        // Two readers may see the same problem.
        self.problems = self.problems.max(other.problems);
        self.warnings = self.warnings.max(other.warnings);
        self.first = self.first.take().or(other.first);
        self.broken = self.broken.take().or(other.broken);
        self.fine |= other.fine;
        self.nothing |= other.nothing;
        self.stopped |= other.stopped;
    }
}

fn add(sum: &mut Option<u64>, count: u64) {
    *sum = Some(sum.unwrap_or(0).saturating_add(count));
}
