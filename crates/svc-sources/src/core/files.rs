//! `Read`, `Write` and `Edit`.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write as _,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use svc_core::tools::{ErrorType, Output, ToolError};

use super::folder::{BoundPath, FolderBounds};
use crate::{field_error, lock};

/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// Most lines of a read without a range.
const MAX_LINES: usize = 2000;
/// Most text of one read, in bytes.
const MAX_TEXT: usize = 1024 * 1024;
/// Largest image, in bytes.
const MAX_IMAGE: usize = 8 * 1024 * 1024;

/// What to read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArguments {
    /// The file.
    #[schemars(length(max = 4096))]
    path: String,
    /// The folder that a relative path begins at, if not the session's.
    #[schemars(length(max = 4096))]
    cwd: Option<String>,
    /// The first line, from 1.
    #[schemars(range(min = 1))]
    line_start: Option<usize>,
    /// The last line.
    #[schemars(range(min = 1))]
    line_end: Option<usize>,
    /// Put each line's number before it.
    with_line_numbers: Option<bool>,
}

/// Text of a file.
#[derive(Serialize, JsonSchema)]
struct FileText {
    path: String,
    /// The text, with its line ends.
    content: String,
    /// Number of the first line in it.
    line_start: usize,
    /// Number of the last line in it.
    line_end: usize,
    /// How many lines the file has.
    total_lines: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// What to write.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    /// The file.
    #[schemars(length(max = 4096))]
    path: String,
    /// All of its content.
    content: String,
    /// Make missing folders.
    create_parents: Option<bool>,
    /// Fail if it is there already.
    must_not_exist: Option<bool>,
    /// Permissions in octal, such as 0644; a file that is there keeps its own.
    #[schemars(length(max = 6))]
    mode: Option<String>,
}

/// What was written.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WriteResult {
    path: String,
    bytes: usize,
    /// Whether the file is new.
    created: bool,
}

/// What to replace.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditArguments {
    /// The file.
    #[schemars(length(max = 4096))]
    path: String,
    /// The text to replace, exactly as it stands there.
    #[schemars(length(min = 1))]
    old_string: String,
    /// The text in its place.
    new_string: String,
    /// Replace all; without it the text must be there once.
    replace_all: Option<bool>,
}

/// What was replaced.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EditResult {
    path: String,
    /// How many were replaced.
    replacements: usize,
}

fn failed(path: &Path, error: &io::Error) -> ToolError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorType::NotFound,
        io::ErrorKind::PermissionDenied => ErrorType::Forbidden,
        io::ErrorKind::AlreadyExists => ErrorType::Conflict,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorType::Unavailable,
        _ => ErrorType::ValidationError,
    };
    field_error(kind, "path", format!("path: {}: {error}", path.display()))
}

fn wrong_path(text: &str) -> ToolError {
    ToolError::invalid("path", format!("path: {text}"))
}

fn content_of(bounds: &FolderBounds, found: &BoundPath) -> Result<Vec<u8>, ToolError> {
    let wrong = |error: io::Error| failed(&found.path, &error);
    if found.path.is_dir() {
        return Err(wrong_path(&format!("{} is a folder: use Glob", found.path.display())));
    }
    let file = bounds.open(found).map_err(wrong)?;
    let mut content = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut content).map_err(wrong)?;
    if content.len() as u64 > MAX_FILE {
        let text = format!("{} is longer than 64 MiB: use Grep", found.path.display());
        return Err(wrong_path(&text));
    }
    Ok(content)
}

fn image_type(content: &[u8]) -> Option<&'static str> {
    match content {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

pub(super) fn read(
    bounds: &FolderBounds,
    seen: &ReadFiles,
    session: &str,
    input: &ReadArguments,
) -> Result<Output, ToolError> {
    let found = bounds.find(input.cwd.as_deref(), &input.path, "path")?;
    let content = content_of(bounds, &found)?;
    let path = bounds.shown(&found.path);
    if let Some(mime) = image_type(&content) {
        if content.len() > MAX_IMAGE {
            return Err(wrong_path(&format!("{path} is an image of more than 8 MiB")));
        }
        let block = json!({ "type": "image", "data": STANDARD.encode(&content), "mimeType": mime });
        let structured = json!({ "path": path, "mimeType": mime, "bytes": content.len() });
        let (content, structured) = (vec![block], Some(structured));
        return Ok(Output::Content { content, structured, is_error: false });
    }
    if content.iter().take(8192).any(|byte| *byte == 0) {
        return Err(wrong_path(&format!("{path} is neither text nor an image")));
    }
    seen.note(session, &found.path, &content);
    let text = String::from_utf8_lossy(&content);
    let text = FileText { path, ..lines_of(&text, input)? };
    let object = serde_json::value::to_raw_value(&text).map_err(|_| ToolError::internal())?;
    Ok(Output::Object(object))
}

fn lines_of(text: &str, input: &ReadArguments) -> Result<FileText, ToolError> {
    let start = input.line_start.unwrap_or(1);
    if input.line_end.is_some_and(|end| end < start) {
        return Err(ToolError::invalid("line_end", "line_end: is before line_start"));
    }
    let last = input.line_end.unwrap_or(start.saturating_add(MAX_LINES - 1));
    let (mut content, mut line_end, mut total_lines) = (String::new(), start - 1, 0);
    let mut truncated = false;
    for line in text.split_inclusive('\n') {
        total_lines += 1;
        if truncated || !(start..=last).contains(&total_lines) {
            continue;
        }
        if content.len() + line.len() > MAX_TEXT {
            truncated = true;
            continue;
        }
        if input.with_line_numbers.unwrap_or(false) {
            write!(content, "{total_lines:>6}\t").expect("writing to a string does not fail");
        }
        content.push_str(line);
        line_end = total_lines;
    }
    truncated |= input.line_end.is_none() && total_lines > last;
    let path = String::new();
    Ok(FileText { path, content, line_start: start, line_end, total_lines, truncated })
}

pub(super) fn write(
    bounds: &FolderBounds,
    seen: &ReadFiles,
    session: &str,
    input: &WriteArguments,
) -> Result<WriteResult, ToolError> {
    let target = bounds.to_write(&input.path, "path")?;
    let mode = input.mode.as_deref().map(mode_of).transpose()?;
    if target.path.is_dir() {
        return Err(wrong_path(&format!("{} is a folder", target.path.display())));
    }
    let wrong = |error: io::Error| failed(&target.path, &error);
    let makes_folders = input.create_parents.unwrap_or(false);
    let held = match target.hold(makes_folders) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !makes_folders => {
            let path = target.path.display();
            let text = format!("path: {path} has no folder: create_parents makes it");
            return Err(field_error(ErrorType::NotFound, "path", text));
        }
        held => held.map_err(wrong)?,
    };
    let kept = bounds.mode_of(&held).map_err(wrong)?;
    let must_not_exist = input.must_not_exist.unwrap_or(false);
    held.write(input.content.as_bytes(), kept.or(mode), must_not_exist).map_err(wrong)?;
    seen.note(session, &target.path, input.content.as_bytes());
    Ok(WriteResult {
        path: bounds.shown(&target.path),
        bytes: input.content.len(),
        created: kept.is_none(),
    })
}

fn mode_of(text: &str) -> Result<u32, ToolError> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| {
        ToolError::invalid("mode", "mode: must be permissions in octal").allowed("0000 to 0777")
    })
}

pub(super) fn edit(
    bounds: &FolderBounds,
    seen: &ReadFiles,
    session: &str,
    input: &EditArguments,
) -> Result<EditResult, ToolError> {
    let found = bounds.find(None, &input.path, "path")?;
    let content = content_of(bounds, &found)?;
    let path = bounds.shown(&found.path);
    seen.check(session, &found.path, &content)
        .map_err(|why| ToolError::new(ErrorType::Conflict, format!("{path} {why}")))?;
    if input.old_string == input.new_string {
        return Err(ToolError::invalid("new_string", "new_string: is the same as old_string"));
    }
    let (old, new) = with_line_ends(&content, &input.old_string, &input.new_string);
    let at: Vec<usize> = memchr::memmem::find_iter(&content, old.as_bytes()).collect();
    let is_all = input.replace_all.unwrap_or(false);
    if at.is_empty() || (at.len() > 1 && !is_all) {
        let (kind, text) = match at.len() {
            0 => (ErrorType::NotFound, format!("old_string: is not in {path}: 0 matches")),
            count => {
                let hint = "give more around it, or replace_all";
                (ErrorType::Conflict, format!("old_string: is in {path} {count} times: {hint}"))
            }
        };
        let error = field_error(kind, "old_string", text);
        return Err(ToolError { have: Some(at.len() as u64), need: Some(1), ..error });
    }
    let mut edited = Vec::with_capacity(content.len());
    let mut from = 0;
    for &start in &at {
        edited.extend_from_slice(&content[from..start]);
        edited.extend_from_slice(new.as_bytes());
        from = start + old.len();
    }
    edited.extend_from_slice(&content[from..]);
    let wrong = |error: io::Error| failed(&found.path, &error);
    let held = found.hold(false).map_err(wrong)?;
    let mode = bounds.mode_of(&held).map_err(wrong)?;
    held.write(&edited, mode, false).map_err(wrong)?;
    seen.note(session, &found.path, &edited);
    Ok(EditResult { path, replacements: at.len() })
}

/// The texts with the line ends of the file, if all of its lines end with CR LF.
fn with_line_ends(content: &[u8], old: &str, new: &str) -> (String, String) {
    let ends = memchr::memchr_iter(b'\n', content).count();
    let is_dos = ends > 0 && ends == content.windows(2).filter(|two| *two == b"\r\n").count();
    let convert = |text: &str| {
        if is_dos && !text.contains('\r') { text.replace('\n', "\r\n") } else { text.to_owned() }
    };
    (convert(old), convert(new))
}

/// Most files that are remembered, for all sessions together.
const MAX_FILES: usize = 20_000;

type FileKey = (String, PathBuf);
type ContentHash = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct ReadFiles(Mutex<SeenTable>);

#[derive(Debug, Default)]
struct SeenTable {
    files: HashMap<FileKey, ContentHash>,
    /// The oldest first.
    order: VecDeque<FileKey>,
}

impl ReadFiles {
    /// Notes that the session has read or written this content.
    pub(super) fn note(&self, session: &str, path: &Path, content: &[u8]) {
        let key = (session.to_owned(), path.to_owned());
        let mut table = lock(&self.0);
        if table.files.insert(key.clone(), Sha256::digest(content).into()).is_none() {
            table.order.push_back(key);
        }
        while table.order.len() > MAX_FILES {
            if let Some(oldest) = table.order.pop_front() {
                table.files.remove(&oldest);
            }
        }
    }

    /// Fails unless the content is what the session has read or written last.
    fn check(&self, session: &str, path: &Path, content: &[u8]) -> Result<(), &'static str> {
        let key = (session.to_owned(), path.to_owned());
        let table = lock(&self.0);
        match table.files.get(&key) {
            None => Err("was not read in this session: Read it first"),
            Some(seen) if *seen == ContentHash::from(Sha256::digest(content)) => Ok(()),
            Some(_) => Err("has changed since this session read or wrote it: Read it again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use serde_json::Value;

    use super::*;

    #[test]
    fn file_with_a_hard_link_outside_is_refused() {
        let tools = FileTools::new();
        let outside =
            tempfile::tempdir_in(tools.folder.path().parent().expect("has one")).expect("a folder");
        let secret = outside.path().join("token");
        fs::write(&secret, "secret").expect("is written");
        tools.put("a", b"1");
        for (first, second) in [(secret.clone(), "x"), (tools.folder.path().join("a"), "b")] {
            fs::hard_link(first, tools.folder.path().join(second)).expect("is linked");
        }
        for refused in [
            tools.read(json!({ "path": "x" })).map(drop),
            tools
                .edit("s", json!({ "path": "x", "old_string": "secret", "new_string": "my" }))
                .map(drop),
            tools.write(json!({ "path": "x", "content": "mine" })).map(drop),
        ] {
            let error = refused.expect_err("has a name outside");
            assert_eq!(error.kind, ErrorType::Forbidden, "{error:?}");
            assert!(error.message.contains("2 names (hard links)"), "{error:?}");
        }
        assert_eq!(fs::read(&secret).expect("is there"), b"secret");
        tools.read(json!({ "path": "b" })).expect("both names are inside");
    }

    struct FileTools {
        folder: tempfile::TempDir,
        bounds: FolderBounds,
        seen: ReadFiles,
    }

    impl FileTools {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let bounds = FolderBounds::new(Some(folder.path()), &[], &[]).expect("bounds");
            Self { folder, bounds, seen: ReadFiles::default() }
        }

        fn put(&self, name: &str, content: &[u8]) {
            fs::write(self.folder.path().join(name), content).expect("is written");
        }

        fn get(&self, name: &str) -> Vec<u8> {
            fs::read(self.folder.path().join(name)).expect("is there")
        }

        fn read(&self, input: Value) -> Result<Value, ToolError> {
            let input = serde_json::from_value(input).expect("arguments");
            match read(&self.bounds, &self.seen, "s", &input)? {
                Output::Object(object) => Ok(serde_json::from_str(object.get()).expect("JSON")),
                Output::Content { content, .. } => Ok(content[0].clone()),
                Output::Verbatim(_) => panic!("is its own"),
            }
        }

        fn edit(&self, session: &str, input: Value) -> Result<usize, ToolError> {
            let input = serde_json::from_value(input).expect("arguments");
            edit(&self.bounds, &self.seen, session, &input).map(|done| done.replacements)
        }

        fn write(&self, input: Value) -> Result<WriteResult, ToolError> {
            let input = serde_json::from_value(input).expect("arguments");
            write(&self.bounds, &self.seen, "s", &input)
        }
    }

    #[test]
    fn lines_by_table() {
        let tools = FileTools::new();
        tools.put("a", b"one\r\ntwo\nthree");
        for (input, content, start, end) in [
            (json!({}), "one\r\ntwo\nthree", 1, 3),
            (json!({ "line_start": 2 }), "two\nthree", 2, 3),
            (json!({ "line_start": 2, "line_end": 2 }), "two\n", 2, 2),
            (json!({ "line_end": 1, "with_line_numbers": true }), "     1\tone\r\n", 1, 1),
            (json!({ "line_start": 9 }), "", 9, 8),
        ] {
            let mut input = input;
            input["path"] = json!("a");
            let read = tools.read(input.clone()).expect("is read");
            assert_eq!(
                (&read["content"], &read["total_lines"]),
                (&json!(content), &json!(3)),
                "{input}"
            );
            assert_eq!(
                (&read["line_start"], &read["line_end"]),
                (&json!(start), &json!(end)),
                "{input}"
            );
            assert_eq!(read["truncated"], Value::Null);
        }
        tools.put("long", "x\n".repeat(3000).as_bytes());
        let read = tools.read(json!({ "path": "long" })).expect("is read");
        assert_eq!((&read["line_end"], &read["truncated"]), (&json!(2000), &json!(true)));
        let read = tools.read(json!({ "path": "long", "line_end": 3000 })).expect("is read");
        assert_eq!((&read["line_end"], &read["truncated"]), (&json!(3000), &Value::Null));
        tools.put("image", b"\x89PNG\r\n\x1a\nrest");
        assert_eq!(
            tools.read(json!({ "path": "image" })).expect("is read")["mimeType"],
            "image/png"
        );
        tools.put("binary", b"\0\x01");
        for (input, kind) in [
            (json!({ "path": "binary" }), ErrorType::ValidationError),
            (json!({ "path": "." }), ErrorType::ValidationError),
            (json!({ "path": "none" }), ErrorType::NotFound),
            (json!({ "path": "a", "line_start": 3, "line_end": 2 }), ErrorType::ValidationError),
        ] {
            assert_eq!(tools.read(input.clone()).expect_err("is refused").kind, kind, "{input}");
        }
    }

    #[test]
    fn edit_requires_the_content_that_the_session_has_seen() {
        let tools = FileTools::new();
        tools.put("a", b"one two one");
        let one = json!({ "path": "a", "old_string": "two", "new_string": "2" });
        assert_eq!(tools.edit("s", one.clone()).expect_err("not read").kind, ErrorType::Conflict);
        tools.read(json!({ "path": "a" })).expect("is read");
        assert_eq!(
            tools.edit("other", one.clone()).expect_err("not read").kind,
            ErrorType::Conflict
        );
        tools.put("a", b"one TWO one");
        let error = tools.edit("s", one).expect_err("has changed");
        assert!(error.message.contains("changed"), "{error:?}");
        tools.read(json!({ "path": "a" })).expect("is read");
        let ones = json!({ "path": "a", "old_string": "one", "new_string": "1" });
        let error = tools.edit("s", ones.clone()).expect_err("is there twice");
        assert_eq!((error.have, error.kind), (Some(2), ErrorType::Conflict));
        let none = json!({ "path": "a", "old_string": "none", "new_string": "1" });
        assert_eq!(tools.edit("s", none).expect_err("is not there").kind, ErrorType::NotFound);
        assert_eq!(tools.get("a"), b"one TWO one");
        let mut all = ones;
        all["replace_all"] = json!(true);
        assert_eq!(tools.edit("s", all).expect("is edited"), 2);
        // A session has seen what it wrote.
        let again = json!({ "path": "a", "old_string": "TWO", "new_string": "2" });
        assert_eq!(tools.edit("s", again).expect("is edited"), 1);
        assert_eq!(tools.get("a"), b"1 2 1");
    }

    #[test]
    fn edit_keeps_line_ends_mode_and_all_other_bytes() {
        use std::os::unix::fs::PermissionsExt as _;
        let tools = FileTools::new();
        tools.put("a", b"\xff one\r\ntwo\r\n");
        let path = tools.folder.path().join("a");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).expect("is set");
        tools.read(json!({ "path": "a" })).expect("is read");
        let lines = json!({ "path": "a", "old_string": "one\ntwo", "new_string": "1\n2\n3" });
        assert_eq!(tools.edit("s", lines).expect("is edited"), 1);
        assert_eq!(tools.get("a"), b"\xff 1\r\n2\r\n3\r\n");
        let mode = fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o751);
    }

    #[test]
    fn writes_by_table() {
        use std::os::unix::fs::PermissionsExt as _;
        let tools = FileTools::new();
        let done = tools
            .write(json!({ "path": "a", "content": "x\r\ny", "mode": "0640" }))
            .expect("is written");
        assert!(done.created && done.bytes == 4);
        assert_eq!(tools.get("a"), b"x\r\ny");
        let mode = |name: &str| {
            fs::metadata(tools.folder.path().join(name)).expect("is there").permissions().mode()
                & 0o777
        };
        assert_eq!(mode("a"), 0o640);
        let done =
            tools.write(json!({ "path": "a", "content": "", "mode": "0600" })).expect("is written");
        assert!(!done.created && mode("a") == 0o640);
        tools
            .write(json!({ "path": "b/c", "content": "", "create_parents": true }))
            .expect("is written");
        for (input, kind) in [
            (json!({ "path": "a", "content": "", "must_not_exist": true }), ErrorType::Conflict),
            (json!({ "path": "n/a", "content": "" }), ErrorType::NotFound),
            (json!({ "path": "b", "content": "" }), ErrorType::ValidationError),
            (json!({ "path": "../a", "content": "" }), ErrorType::Forbidden),
            (json!({ "path": "x", "content": "", "mode": "rw" }), ErrorType::ValidationError),
            (json!({ "path": "x", "content": "", "mode": "7777" }), ErrorType::ValidationError),
        ] {
            assert_eq!(tools.write(input.clone()).expect_err("is refused").kind, kind, "{input}");
        }
        let refused = tools.write(json!({ "path": "n/a", "content": "" })).expect_err("no folder");
        assert!(refused.message.contains("create_parents"), "{}", refused.message);
    }

    #[test]
    fn write_leaves_a_socket_alone() {
        use std::os::unix::{fs::FileTypeExt as _, net::UnixListener};
        let tools = FileTools::new();
        let path = tools.folder.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("is bound");
        let refused = tools.write(json!({ "path": "socket", "content": "x" }));
        let refused = refused.expect_err("is refused");
        assert_eq!(refused.kind, ErrorType::ValidationError);
        assert!(refused.message.contains("no regular file"), "{}", refused.message);
        assert!(fs::symlink_metadata(&path).expect("is there").file_type().is_socket());
    }

    /// A dangling link stays a link, and its target has to be inside.
    #[test]
    fn write_through_a_dangling_link_creates_its_target() {
        let tools = FileTools::new();
        let at = |name: &str| tools.folder.path().join(name);
        let outside = tempfile::tempdir().expect("a folder");
        for (target, link) in [
            ("made".into(), "near"),
            ("near".into(), "far"),
            (outside.path().join("x"), "out"),
            ("ring".into(), "ring"),
        ] {
            symlink::<PathBuf, _>(target, at(link)).expect("is linked");
        }
        tools.write(json!({ "path": "far", "content": "one" })).expect("is written");
        assert_eq!(tools.get("made"), b"one");
        assert!(at("far").is_symlink() && at("near").is_symlink());
        for link in ["out", "ring"] {
            let refused = tools.write(json!({ "path": link, "content": "" }));
            assert_eq!(refused.expect_err(link).kind, ErrorType::Forbidden);
        }
        assert!(!outside.path().join("x").exists());
    }
}
