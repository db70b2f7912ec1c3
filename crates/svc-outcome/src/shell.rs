//! The simple commands of a shell line, and what the status of the line says about each of them.
//!
//! A lexer and not a parser: it accepts any text, because half a command still shows what ran, and
//! it reads every byte once. Parsers of the whole grammar refuse unknown syntax, and crates that
//! only split words do not know operators.

/// Nesting of groups and substitutions; deeper ones are skipped.
const MAX_DEPTH: usize = 40;

/// The operator after a simple command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    End,
    And,
    Or,
    Pipe,
    /// `;` or the end of a line.
    Next,
    Background,
}

#[derive(Debug)]
pub(super) struct Simple {
    /// Unquoted, without redirections; expansions stay as written.
    pub(super) words: Vec<String>,
    /// The operator after it, or after the group that it ends.
    pub(super) then: Then,
    pub(super) depth: usize,
    /// Number of groups around `then`.
    pub(super) then_depth: usize,
    /// Whether the line does not show its status: a condition, a loop, a substitution, after `!`.
    pub(super) lost: bool,
}

/// The simple commands of a line, in the order of their starts; commands of a substitution come
/// before the command around it.
pub(super) fn simple_commands(line: &str) -> Vec<Simple> {
    let mut reader = Reader { text: line.as_bytes(), ..Reader::default() };
    reader.list(false);
    reader.found
}

#[derive(Default)]
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    found: Vec<Simple>,
    /// The groups around this position; true where a status is lost.
    groups: Vec<bool>,
    /// Delimiters of here-documents that begin on the next line.
    here: Vec<Vec<u8>>,
}

/// The simple command being read.
#[derive(Default)]
struct Current {
    words: Vec<String>,
    /// It began with the end of a block, so what follows belongs to the block's last command.
    closes: bool,
    negated: bool,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    /// Reads commands to the end, or through the closing parenthesis if `nested`.
    fn list(&mut self, nested: bool) {
        let mut current = Current::default();
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'\\' if self.peek(1) == Some(b'\n') => self.at += 2,
                b'\n' => {
                    self.at += 1;
                    self.end(&mut current, Then::Next);
                    self.skip_here_documents();
                }
                b';' => {
                    self.at += 1;
                    self.end(&mut current, Then::Next);
                }
                b'&' if self.peek(1) == Some(b'>') => {
                    self.at += 1;
                    self.redirection();
                }
                b'&' | b'|' => {
                    let twice = self.peek(1) == Some(byte);
                    let both = byte == b'|' && self.peek(1) == Some(b'&');
                    self.at += if twice || both { 2 } else { 1 };
                    let then = match (byte, twice) {
                        (b'&', true) => Then::And,
                        (b'&', false) => Then::Background,
                        (_, true) => Then::Or,
                        (_, false) => Then::Pipe,
                    };
                    self.end(&mut current, then);
                }
                b'(' => {
                    self.at += 1;
                    let before = self.found.len();
                    let head_of_function = self.peek(0) == Some(b')');
                    self.group(false);
                    if head_of_function {
                        current = Current::default();
                    } else if !current.words.is_empty() {
                        // An array: its words are not run.
                        self.found.truncate(before);
                    }
                }
                b')' => {
                    self.at += 1;
                    if nested {
                        self.end(&mut current, Then::End);
                        return;
                    }
                    self.end(&mut current, Then::Next);
                }
                b'<' | b'>' => self.redirection(),
                b'#' => {
                    while self.peek(0).is_some_and(|byte| byte != b'\n') {
                        self.at += 1;
                    }
                }
                _ => {
                    let (word, quoted) = self.word();
                    let descriptor = matches!(self.peek(0), Some(b'<' | b'>'))
                        && !word.is_empty()
                        && word.iter().all(u8::is_ascii_digit);
                    if !descriptor {
                        self.take(&mut current, &word, quoted);
                    }
                }
            }
        }
        self.end(&mut current, Then::End);
    }

    /// A list in parentheses, after the opening one.
    fn group(&mut self, lost: bool) {
        if self.groups.len() >= MAX_DEPTH {
            self.at = self.text.len();
            return;
        }
        let around = self.groups.len();
        self.groups.push(lost);
        self.list(true);
        self.groups.truncate(around);
    }

    /// A word of the current command, or a keyword of the shell.
    fn take(&mut self, current: &mut Current, word: &[u8], quoted: bool) {
        if current.words.is_empty() && !quoted && !current.closes {
            if self.groups.len() > MAX_DEPTH {
                self.at = self.text.len();
                return;
            }
            match word {
                b"{" => return self.groups.push(false),
                b"if" | b"while" | b"until" => return self.groups.push(true),
                b"for" | b"case" | b"select" => self.groups.push(true),
                b"then" | b"do" | b"else" | b"elif" => return,
                b"!" => {
                    current.negated = true;
                    return;
                }
                b"}" | b"fi" | b"done" | b"esac" => {
                    self.groups.pop();
                    current.closes = true;
                    return;
                }
                _ => {}
            }
        }
        current.words.push(String::from_utf8_lossy(word).into_owned());
    }

    fn end(&mut self, current: &mut Current, then: Then) {
        let Current { words, closes, negated } = std::mem::take(current);
        let depth = self.groups.len();
        if words.is_empty() || closes {
            // An operator after a group belongs to the last command in it.
            if let Some(last) = self.found.last_mut()
                && (closes
                    || last.then == Then::End
                    || (then == Then::End && last.then == Then::Next))
            {
                (last.then, last.then_depth) = (then, depth);
            }
            return;
        }
        let lost = negated || self.groups.contains(&true);
        self.found.push(Simple { words, then, depth, then_depth: depth, lost });
    }

    /// Skips a redirection and its target, and notes the delimiter of a here-document.
    fn redirection(&mut self) {
        let start = self.at;
        while matches!(self.peek(0), Some(b'<' | b'>' | b'&' | b'|')) && self.at - start < 3 {
            self.at += 1;
        }
        let operator = &self.text[start..self.at];
        if self.peek(0) == Some(b'(') {
            self.at += 1;
            return self.group(true);
        }
        let here = operator == b"<<";
        if here && self.peek(0) == Some(b'-') {
            self.at += 1;
        }
        while matches!(self.peek(0), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        let ends = |byte| matches!(byte, b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>');
        if self.peek(0).is_some_and(|byte| !ends(byte)) {
            let (target, _) = self.word();
            if here {
                self.here.push(target);
            }
        }
    }

    fn skip_here_documents(&mut self) {
        for delimiter in std::mem::take(&mut self.here) {
            while self.at < self.text.len() {
                let rest = &self.text[self.at..];
                let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                self.at += (end + 1).min(rest.len());
                if rest[..end].trim_ascii() == delimiter {
                    break;
                }
            }
        }
    }

    /// An unquoted word, and whether it had quotes. Its substitutions are read as lists of their
    /// own.
    fn word(&mut self) -> (Vec<u8>, bool) {
        let (mut word, mut quoted) = (Vec::new(), false);
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>' => {
                    break;
                }
                b'\'' => {
                    quoted = true;
                    let escapes = word.last() == Some(&b'$');
                    self.single_quoted(&mut word, escapes);
                }
                b'"' => {
                    quoted = true;
                    self.double_quoted(&mut word);
                }
                _ => self.character(&mut word),
            }
        }
        (word, quoted)
    }

    fn single_quoted(&mut self, word: &mut Vec<u8>, escapes: bool) {
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            match byte {
                b'\'' => return,
                b'\\' if escapes => {
                    word.extend(self.peek(0));
                    self.at += 1;
                }
                _ => word.push(byte),
            }
        }
    }

    fn double_quoted(&mut self, word: &mut Vec<u8>) {
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            if byte == b'"' {
                self.at += 1;
                return;
            }
            self.character(word);
        }
    }

    /// A character of a word, an escaped one, or a substitution.
    fn character(&mut self, word: &mut Vec<u8>) {
        match (self.peek(0), self.peek(1)) {
            (Some(b'\\'), Some(b'\n')) => self.at += 2,
            (Some(b'\\'), Some(escaped)) => {
                self.at += 2;
                word.push(escaped);
            }
            (Some(b'$'), Some(b'(')) => {
                self.at += 2;
                self.group(true);
            }
            (Some(b'`'), _) => self.backticks(),
            (Some(byte), _) => {
                self.at += 1;
                word.push(byte);
            }
            (None, _) => {}
        }
    }

    fn backticks(&mut self) {
        self.at += 1;
        let mut inside = Vec::new();
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            match byte {
                b'`' => break,
                b'\\' => {
                    inside.extend(self.peek(0));
                    self.at += 1;
                }
                _ => inside.push(byte),
            }
        }
        if self.groups.len() < MAX_DEPTH {
            let mut groups = self.groups.clone();
            groups.push(true);
            let mut reader = Reader { text: &inside, groups, ..Reader::default() };
            reader.list(false);
            self.found.append(&mut reader.found);
        }
    }
}

/// Whether `word` is in a list of words separated by spaces.
pub(super) fn is_one_of(word: &str, words: &str) -> bool {
    words.split(' ').any(|it| it == word)
}

pub(super) fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The name of a program without its folder and extension.
pub(super) fn program(word: &str) -> &str {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word);
    name.strip_suffix(".exe").or_else(|| name.strip_suffix(".cmd")).unwrap_or(name)
}

/// What the status of a line says about each command in it. Two passes make the tables, since a
/// line may have thousands of commands.
pub(super) struct LineStatus<'a> {
    commands: &'a [Simple],
    /// For each command, whether a later one hides its status.
    hidden: Vec<bool>,
    /// For each command, what an earlier one may do.
    after_another: Vec<Before>,
    /// For each command, whether a later one may fail.
    before_another: Vec<bool>,
}

#[derive(Clone, Copy, Default)]
struct Before {
    may_fail: bool,
    may_skip: bool,
}

impl<'a> LineStatus<'a> {
    pub(super) fn new(commands: &'a [Simple]) -> Self {
        let sets = |is_it: fn(&String) -> bool| {
            commands.iter().any(|simple| {
                simple.words.first().is_some_and(|word| word == "set")
                    && simple.words.iter().any(is_it)
            })
        };
        let pipefail = sets(|word| word == "pipefail");
        // The end of a line is then like `&&`.
        let errexit =
            sets(|word| word == "errexit" || (word.starts_with('-') && word.contains('e')));
        // From the end: whether a later operator hides the status, whether a later command may
        // fail, and the smallest depth of a later pipe.
        let (mut is_hidden, mut another, mut pipes) = (false, false, usize::MAX);
        let mut hidden = vec![false; commands.len()];
        let mut before_another = vec![false; commands.len()];
        for (n, simple) in commands.iter().enumerate().rev() {
            let next = commands.get(n + 1);
            let exits = next.is_some_and(|next| ends_in_failure(&next.words));
            let is_piped = !pipefail && simple.then == Then::Pipe;
            match simple.then {
                Then::Background => is_hidden = true,
                Then::Next if !errexit => is_hidden |= next.is_some(),
                Then::Or => is_hidden |= next.is_some() && !exits,
                Then::And | Then::Next => {
                    another |= next.is_some_and(|next| !next.lost && !is_harmless(&next.words));
                }
                Then::End | Then::Pipe => {}
            }
            hidden[n] = simple.lost || is_hidden || is_piped || pipes < simple.depth;
            before_another[n] = another;
            if is_piped {
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
                Then::Next => {
                    let may_fail = before.may_fail || !is_harmless(&simple.words);
                    if simple.then_depth == 0 {
                        before = Before::default();
                    }
                    before.may_fail |= errexit && may_fail;
                }
                _ => {}
            }
        }
        Self { commands, hidden, after_another, before_another }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        simple_commands(line).iter().map(|simple| simple.words.join(" ")).collect()
    }

    #[test]
    fn line_is_split_into_simple_commands() {
        for (line, expected) in [
            ("cd x && pytest -q", &["cd x", "pytest -q"][..]),
            ("a 2>&1 | tee 'b c' >/dev/null; d &", &["a", "tee b c", "d"]),
            ("echo \"a && b\" 'c | d' e\\ f", &["echo a && b c | d e f"]),
            ("(a; b) || { c; }", &["a", "b", "c"]),
            ("if a; then b; fi; for x in y; do c; done", &["a", "b", "for x in y", "c"]),
            ("x=$(a b) y", &["a b", "x= y"]),
            ("echo `a b`", &["a b", "echo "]),
            ("a # b && c\nd", &["a", "d"]),
            ("cat <<'END' > f\na && it's\nEND\nb", &["cat", "b"]),
            (
                "git commit -m \"$(cat <<'END'\ndon't pytest (\nEND\n)\" && b",
                &["cat", "git commit -m ", "b"],
            ),
            ("a <<< 'b c' d", &["a d"]),
            ("list=(a b); f() { c; }", &["list=", "c"]),
            ("a \\\n  b", &["a b"]),
            ("a &> log && b 2>err", &["a", "b"]),
            ("a 'open", &["a open"]),
            ("", &[]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }

    #[test]
    fn operator_belongs_to_the_command_that_it_ends() {
        for (line, expected) in [
            (
                "(a; b) | c",
                &[("a", Then::Next, 1, 1), ("b", Then::Pipe, 1, 0), ("c", Then::End, 0, 0)][..],
            ),
            ("{ a; } && b;", &[("a", Then::And, 1, 0), ("b", Then::End, 0, 0)]),
            ("a &&\n b", &[("a", Then::And, 0, 0), ("b", Then::End, 0, 0)]),
        ] {
            let commands = simple_commands(line);
            let split: Vec<_> = commands
                .iter()
                .map(|it| (it.words[0].as_str(), it.then, it.depth, it.then_depth))
                .collect();
            assert_eq!(split, expected, "{line}");
        }
    }

    #[test]
    fn depth_has_a_bound() {
        let deep = format!("{}a{}", "$(".repeat(100_000), ")".repeat(100_000));
        assert!(simple_commands(&deep).len() <= MAX_DEPTH + 1);
        assert!(simple_commands(&"{ ".repeat(100_000)).is_empty());
    }
}
