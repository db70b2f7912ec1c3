//! The documentation's pages as Markdown: their fenced blocks, headings, tables, links and inline
//! code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::daemon::{Home, svc};

/// A page, by its path below the root of the repository.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) text: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The text after the opening fence, such as `sh check`.
    pub(crate) info: String,
    pub(crate) text: String,
    /// Number of the opening fence's line.
    pub(crate) line: usize,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md, ARCHITECTURE.md, the contributors' page and everything below docs/.
pub(crate) fn pages() -> Vec<Page> {
    let top = ["README.md", "ARCHITECTURE.md", ".github/CONTRIBUTING.md"];
    let mut paths = Vec::from(top.map(|name| root().join(name)));
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of pages") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| Page::read(path)).collect()
}

impl Page {
    pub(crate) fn named(name: &str) -> Self {
        Self::read(&root().join(name))
    }

    fn read(path: &Path) -> Self {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, text }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        root().join(&self.name).parent().expect("a page is in a folder").to_path_buf()
    }

    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (number, line) in (1..).zip(self.text.lines()) {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(info)) => {
                    let info = info.trim().to_owned();
                    open = Some(Block { info, text: String::new(), line: number });
                }
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a fence is not closed", self.name);
        blocks
    }

    /// The lines outside fences.
    pub(crate) fn prose(&self) -> impl Iterator<Item = &str> {
        let mut is_fenced = false;
        self.text.lines().filter(move |line| {
            let is_fence = line.starts_with("```");
            is_fenced ^= is_fence;
            !is_fence && !is_fenced
        })
    }

    /// All text in back-quotes outside fences.
    pub(crate) fn inline_code(&self) -> impl Iterator<Item = &str> {
        self.prose().flat_map(|line| line.split('`').skip(1).step_by(2))
    }

    /// The sections below headings of this level: the heading's text without its marks, and all
    /// lines up to the next heading of this level or a higher one.
    pub(crate) fn sections(&self, level: usize) -> BTreeMap<String, Page> {
        let mut sections: BTreeMap<String, Page> = BTreeMap::new();
        let mut present = None;
        for line in self.prose() {
            let depth = line.bytes().take_while(|b| *b == b'#').count();
            if depth == level {
                let title = line[depth..].trim().replace('`', "");
                let page = Page { name: format!("{}#{title}", self.name), text: String::new() };
                assert!(
                    sections.insert(title.clone(), page).is_none(),
                    "{}: two headings say {title:?}",
                    self.name
                );
                present = Some(title);
            } else if depth > 0 && depth < level {
                present = None;
            } else if let Some(section) = present.as_ref().and_then(|it| sections.get_mut(it)) {
                section.text.push_str(line);
                section.text.push('\n');
            }
        }
        sections
    }

    /// The cells of the rows of all tables, without head and ruler.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let cells = |line: &str| -> Vec<String> {
            let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
            inner
                .replace("\\|", "\u{1}")
                .split('|')
                .map(|it| it.trim().replace('\u{1}', "|"))
                .collect()
        };
        let lines: Vec<&str> = self.prose().collect();
        let is_rule = |line: &str| line.starts_with("|-") || line.starts_with("| -");
        let mut rows = Vec::new();
        for (n, line) in lines.iter().enumerate() {
            let heads = lines.get(n + 1).is_some_and(|next| is_rule(next));
            if line.starts_with('|') && !is_rule(line) && !heads {
                rows.push(cells(line));
            }
        }
        rows
    }

    /// The text in back-quotes in the first cell of each row, with the row.
    pub(crate) fn rows_by_name(&self) -> BTreeMap<String, Vec<String>> {
        let mut named = BTreeMap::new();
        for row in self.rows() {
            if let Some(name) = row[0].split('`').nth(1) {
                named.insert(name.to_owned(), row);
            }
        }
        named
    }

    /// The anchors of this page's headings, as GitHub builds them.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let headings = self.prose().filter(|line| line.starts_with('#'));
        let mut anchors: Vec<String> = Vec::new();
        for heading in headings {
            let base = anchor(heading.trim_start_matches('#').trim());
            let mut name = base.clone();
            for n in 1.. {
                if !anchors.contains(&name) {
                    break;
                }
                name = format!("{base}-{n}");
            }
            anchors.push(name);
        }
        anchors
    }
}

fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// A command of `svc`, as its help describes it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Described {
    pub(crate) subcommands: Vec<String>,
    /// By names such as `--json` and `-n`.
    pub(crate) options: BTreeMap<String, Opt>,
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Opt {
    /// Name of its value.
    pub(crate) value: Option<String>,
    pub(crate) default: Option<String>,
}

/// Every command by its words, without `svc` and without `help`. The root has the empty name.
pub(crate) fn commands() -> &'static BTreeMap<String, Described> {
    static COMMANDS: OnceLock<BTreeMap<String, Described>> = OnceLock::new();
    COMMANDS.get_or_init(|| {
        let home = Home::new();
        let mut all = BTreeMap::new();
        // Commands that no help lists are aliases of listed ones.
        let mut waiting = vec![String::new(), "message".to_owned(), "session send".to_owned()];
        while let Some(name) = waiting.pop() {
            let mut words = vec!["help"];
            words.extend(name.split(' ').filter(|word| !word.is_empty()));
            let described = describe(svc(&home, &words).ok(), name.is_empty());
            for below in &described.subcommands {
                waiting.push(format!("{name} {below}").trim().to_owned());
            }
            all.insert(name, described);
        }
        all
    })
}

fn describe(help: &str, is_root: bool) -> Described {
    let mut described = Described::default();
    let mut part = "";
    let mut present: Vec<String> = Vec::new();
    let mut about = String::new();
    for line in help.lines() {
        if line.ends_with(':') && !line.starts_with(' ') {
            part = line;
            continue;
        }
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let first = text.split(' ').next().unwrap_or_default();
        match part {
            // The help of the program lists its commands in groups.
            "Commands:" if indent == 2 && first != "help" => {
                described.subcommands.push(first.to_owned());
            }
            group
                if is_root
                    && indent == 2
                    && first != "help"
                    && !matches!(group, "" | "Options:" | "Examples:") =>
            {
                described.subcommands.push(first.to_owned());
            }
            "Arguments:" if indent == 2 => {
                described.arguments.push(first.trim_matches(['<', '>', '[', ']', '.']).to_owned());
            }
            "Options:" if text.starts_with('-') && !text.starts_with("- ") => {
                let mut words = text.split([' ', ',']).filter(|word| !word.is_empty()).peekable();
                let mut names = Vec::new();
                while let Some(name) = words.next_if(|word| word.starts_with('-')) {
                    names.push(name);
                }
                let value = words
                    .next()
                    .filter(|word| word.starts_with('<'))
                    .map(|word| word.trim_matches(['<', '>']).to_owned());
                present = names.iter().map(|name| (*name).to_owned()).collect();
                text.clone_into(&mut about);
                for name in names {
                    let option = Opt { value: value.clone(), default: None };
                    described.options.insert(name.to_owned(), option);
                }
            }
            "Options:" => {
                about.push(' ');
                about.push_str(text);
            }
            _ => {}
        }
        let default = about.split("[default: ").nth(1).and_then(|rest| rest.split_once(']'));
        for name in &present {
            if let Some(option) = described.options.get_mut(name) {
                option.default = default.map(|(default, _)| default.to_owned());
            }
        }
    }
    described
}

/// The mistake in a line that begins with `svc`: an unknown command or option.
pub(crate) fn wrong_with(line: &str) -> Option<String> {
    let commands = commands();
    let words =
        line.split_whitespace().map(|word| word.trim_matches(['"', '\'', ')', '('])).skip(1);
    let mut name = String::new();
    let is_name = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    for word in words {
        let present = &commands[&name];
        let below = format!("{name} {word}").trim().to_owned();
        if matches!(word, "--" | "help") || word.starts_with('#') {
            return None;
        }
        // A dash alone is standard input.
        if word.starts_with('-') && word != "-" {
            let option = word.split('=').next().unwrap_or(word);
            let is_known = |described: &Described| described.options.contains_key(option);
            if !is_known(present) && !is_known(&commands[""]) {
                return Some(format!("`svc {name}` has no option {option}"));
            }
        } else if commands.contains_key(&below) {
            name = below;
        } else if present.arguments.is_empty() && is_name(word) && !present.subcommands.is_empty() {
            return Some(format!("`svc {name}` has no command {word}"));
        }
    }
    None
}
