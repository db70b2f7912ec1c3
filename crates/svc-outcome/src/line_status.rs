//! What the status of a shell line says of each command in it.

use super::shell::{Simple, Then, is_assignment, is_one_of, program};

/// Tables that two passes make: a line may have
/// thousands of commands.
pub(super) struct LineStatus<'a> {
    commands: &'a [Simple],
    /// For each command: a later one hides its status.
    hidden: Vec<bool>,
    /// For each command: what an earlier one may do.
    after_another: Vec<Before>,
    /// For each command: a later one may fail.
    before_another: Vec<bool>,
    pipefail: bool,
}

#[derive(Clone, Copy, Default)]
struct Before {
    may_fail: bool,
    may_skip: bool,
}

impl<'a> LineStatus<'a> {
    pub(super) fn new(commands: &'a [Simple]) -> Self {
        let sets = |letter: char, name: &str| {
            commands.iter().any(|simple| {
                simple.words.first().is_some_and(|word| word == "set")
                    && simple.words[1..].iter().any(|word| {
                        word == name
                            || word
                                .strip_prefix('-')
                                .is_some_and(|letters| letters.contains(letter))
                    })
            })
        };
        // `set -o pipefail` has no letter.
        let pipefail = sets('\0', "pipefail");
        let errexit = sets('e', "errexit");

        // From the end: the smallest depth of an operator that hides earlier statuses.
        let (mut hides, mut pipes) = (usize::MAX, usize::MAX);
        let mut another = usize::MAX;
        let mut hidden = vec![false; commands.len()];
        let mut before_another = vec![false; commands.len()];
        for (n, simple) in commands.iter().enumerate().rev() {
            let next = commands.get(n + 1);
            let exits = next.is_some_and(|next| ends_in_failure(&next.words));
            match simple.then {
                Then::Or if exits => {}
                Then::Next if errexit => {}
                Then::Or | Then::Background | Then::Next if next.is_some() => {
                    hides = hides.min(simple.then_depth);
                }
                Then::Background => hides = hides.min(simple.then_depth),
                _ => {}
            }
            if simple.then == Then::And
                && next.is_some_and(|next| !next.lost && !is_harmless(&next.words))
            {
                another = another.min(simple.then_depth);
            }
            let piped = !pipefail && simple.then == Then::Pipe;
            hidden[n] = simple.lost
                || hides <= simple.depth
                || piped
                || (!pipefail && pipes < simple.depth);
            before_another[n] = another <= simple.depth;
            if piped {
                pipes = pipes.min(simple.then_depth);
            }
        }

        let mut before = Before::default();
        let mut after_another = Vec::with_capacity(commands.len());
        for simple in commands {
            after_another.push(before);
            match simple.then {
                Then::Or => before.may_skip = true,
                Then::And if !simple.lost && !is_harmless(&simple.words) => before.may_fail = true,
                Then::Next if errexit && !is_harmless(&simple.words) => before.may_fail = true,
                Then::Next if simple.then_depth == 0 => {
                    before = Before { may_fail: errexit && before.may_fail, ..Before::default() };
                }
                _ => {}
            }
        }
        Self { commands, hidden, after_another, before_another, pipefail }
    }

    pub(super) fn success_is_of(&self, n: usize) -> bool {
        !self.hidden[n] && !self.after_another[n].may_skip
    }

    pub(super) fn failure_is_of(&self, n: usize) -> bool {
        self.success_is_of(n) && !self.after_another[n].may_fail && !self.before_another[n]
    }

    /// Whether a filter drops lines of the output. `tail` keeps the summary.
    pub(super) fn picked(&self, n: usize) -> bool {
        const PICKS: &str = "head grep egrep rg awk sed cut wc sort uniq jq";
        let pipes = self.commands[n..].windows(2).take_while(|pair| pair[0].then == Then::Pipe);
        pipes.take(8).any(|pair| is_one_of(program(&pair[1].words[0]), PICKS))
    }

    /// The text before the printed status of a command: `pytest; echo "exit: $?"`.
    pub(super) fn echoed(&self, n: usize) -> Option<String> {
        let end = (n..self.commands.len().min(n + 8))
            .find(|&at| self.commands[at].then != Then::Pipe)
            .filter(|&at| self.commands[at].then == Then::Next)?;
        let echo = &self.commands.get(end + 1)?.words;
        if !matches!(echo.first()?.as_str(), "echo" | "printf") {
            return None;
        }
        let text = echo[1..].join(" ");
        let of_pipe = "${PIPESTATUS[0]}";
        let (before, _) = match text.split_once("$?") {
            Some(split) if end == n || self.pipefail => split,
            _ => text.split_once(of_pipe)?,
        };
        Some(before.trim_start_matches("-e ").trim_start_matches("-n ").trim().to_owned())
    }
}

/// Whether a command hardly ever fails on its own: `cd`, `echo`.
fn is_harmless(words: &[String]) -> bool {
    const HARMLESS: &str = "cd pushd popd export unset set source . echo printf true : mkdir sleep \
        date pwd ulimit";
    let first = words.iter().find(|word| !is_assignment(word));
    first.is_none_or(|word| is_one_of(word, HARMLESS))
}

fn ends_in_failure(words: &[String]) -> bool {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["false"] => true,
        ["exit" | "return", status] => status != "0",
        _ => false,
    }
}
