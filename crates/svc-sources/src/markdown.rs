//! Converts HTML to Markdown in a process with bounds. A page with too deep a nesting becomes plain
//! text: the converter recurses for each level.

use std::{
    io,
    process::{ExitCode, Stdio},
    rc::Rc,
    time::Duration,
};

use htmd::{HtmlToMarkdown, Node};
use markup5ever_rcdom::NodeData;
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The first argument of this program when it converts a page.
pub const CONVERTER: &str = "convert-page";
/// Deepest nesting that is converted.
const MAX_DEPTH: usize = 256;
/// CPU time of a conversion, in seconds.
const SECONDS: u64 = 10;
/// Most memory of a conversion, in bytes.
const MEMORY: u64 = 1024 * 1024 * 1024;

/// Elements without text for a reader.
const LEFT_OUT: [&str; 7] = ["script", "style", "noscript", "template", "svg", "iframe", "head"];

/// Converts a page in a process of its own with bounds of time and memory: parsers of HTML take
/// quadratic time for some pages, and the author of a page may choose such a one. The fallback is
/// the text between the tags.
pub(crate) async fn markdown_of(html: String) -> String {
    let converted = tokio::time::timeout(Duration::from_secs(SECONDS * 2), in_process(&html)).await;
    match converted {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a page is not converted");
            strip_tags(&html)
        }
        Err(_) => strip_tags(&html),
    }
}

async fn in_process(html: &str) -> io::Result<String> {
    let mut converter = tokio::process::Command::new(std::env::current_exe()?)
        .arg(CONVERTER)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(mut input), Some(mut output)) = (converter.stdin.take(), converter.stdout.take())
    else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let mut text = String::new();
    let write = async {
        let written = input.write_all(html.as_bytes()).await;
        drop(input);
        written
    };
    // It may end before it has read all.
    let (_, read) = tokio::join!(write, output.read_to_string(&mut text));
    read?;
    let status = converter.wait().await?;
    if status.success() { Ok(text) } else { Err(io::Error::other(status.to_string())) }
}

/// The child process: reads a page, writes Markdown.
pub fn convert_page() -> ExitCode {
    use std::io::{Read as _, Write as _};

    for (resource, most) in [(Resource::Cpu, SECONDS), (Resource::As, MEMORY)] {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        if setrlimit(resource, limit).is_err() {
            return ExitCode::FAILURE;
        }
    }
    let mut html = String::new();
    if io::stdin().lock().read_to_string(&mut html).is_err() {
        return ExitCode::FAILURE;
    }
    match io::stdout().lock().write_all(convert(&html).as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The text of a page with its tags removed.
fn strip_tags(html: &str) -> String {
    let mut text = String::new();
    for piece in html.split('<') {
        let (_, rest) = piece.split_once('>').unwrap_or(("", piece));
        for word in rest.split_whitespace() {
            text.push_str(word);
            text.push(' ');
        }
    }
    text.trim_end().to_owned()
}

fn convert(html: &str) -> String {
    let converter = HtmlToMarkdown::builder().skip_tags(LEFT_OUT.to_vec()).build();
    let Ok(tree) = converter.html_to_tree(html) else { return String::new() };
    if depth(&tree) > MAX_DEPTH {
        return text_of(&tree);
    }
    converter.tree_to_markdown(&tree)
}

fn depth(tree: &Rc<Node>) -> usize {
    let (mut deepest, mut open) = (0, vec![(Rc::clone(tree), 1)]);
    while let Some((node, level)) = open.pop() {
        deepest = deepest.max(level);
        open.extend(node.children.borrow().iter().map(|child| (Rc::clone(child), level + 1)));
    }
    deepest
}

/// The text of a page, without its structure.
fn text_of(tree: &Rc<Node>) -> String {
    let (mut text, mut open) = (String::new(), vec![Rc::clone(tree)]);
    while let Some(node) = open.pop() {
        match &node.data {
            NodeData::Text { contents } => {
                let contents = contents.borrow();
                let mut words = contents.split_whitespace().peekable();
                while let Some(word) = words.next() {
                    text.push_str(word);
                    text.push(if words.peek().is_some() { ' ' } else { '\n' });
                }
            }
            NodeData::Element { name, .. } if LEFT_OUT.contains(&&*name.local) => {}
            _ => open.extend(node.children.borrow().iter().rev().map(Rc::clone)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_convert_by_table() {
        for (html, expected) in [
            ("<h1>Title</h1><p>Some <b>bold</b> text.</p>", "# Title\n\nSome **bold** text."),
            ("<a href=\"/x\">link</a>", "[link](/x)"),
            ("<head><title>t</title><style>s</style></head><script>evil()</script>text", "text"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(convert(html).trim(), expected, "{html}");
        }
        assert_eq!(strip_tags("a <b>c\n d</b><i"), "a c d i");
    }

    #[test]
    fn too_deeply_nested_page_becomes_plain_text() {
        let (open, close) = ("<div>".repeat(1000), "</div>".repeat(1000));
        let deep = format!("{open}one<script>no</script> two{close}");
        assert_eq!(convert(&deep), "one\ntwo\n");
    }
}
