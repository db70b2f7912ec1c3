//! HTML as markdown. What a page nests too deeply is given as its text alone: the converter calls itself for each level.

use std::rc::Rc;

use htmd::{HtmlToMarkdown, Node};
use markup5ever_rcdom::NodeData;

/// Deepest nesting that is converted.
const MAX_DEPTH: usize = 256;
/// Room for a level in the slowest build, times as many.
const STACK: usize = 16 * 1024 * 1024;

/// Elements that are no part of what a page says.
const LEFT_OUT: [&str; 7] = ["script", "style", "noscript", "template", "svg", "iframe", "head"];

/// Converts a page, on a thread of its own.
pub(super) async fn of_html(html: String) -> String {
    let (sender, converted) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("markdown".to_owned()).stack_size(STACK);
    let started = thread.spawn(move || {
        // Whoever waited may have gone.
        sender.send(convert(&html)).ok();
    });
    match started {
        Ok(_) => converted.await.unwrap_or_default(),
        Err(_) => String::new(),
    }
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

/// The text of a page, without its form.
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

    #[tokio::test]
    async fn pages_by_table() {
        for (html, expected) in [
            ("<h1>Title</h1><p>Some <b>bold</b> text.</p>", "# Title\n\nSome **bold** text."),
            ("<a href=\"/x\">link</a>", "[link](/x)"),
            ("<head><title>t</title><style>s</style></head><script>evil()</script>text", "text"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(of_html(html.to_owned()).await.trim(), expected, "{html}");
        }
    }

    #[tokio::test]
    async fn a_page_that_nests_without_end_is_text() {
        let deep = format!(
            "{}one<script>no</script> two{}",
            "<div>".repeat(100_000),
            "</div>".repeat(100_000)
        );
        assert_eq!(of_html(deep).await, "one\ntwo\n");
        let closed_wrongly = format!("{}end", "<b></i>".repeat(20_000));
        assert!(of_html(closed_wrongly).await.contains("end"));
    }
}
