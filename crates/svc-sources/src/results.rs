//! Results that are too large for a response: kept as files for a week, each for its caller, the
//! caller's project and the operator.

use std::{
    borrow::Cow,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest as _, Sha256};
use svc_core::tools::Output;
use svc_model::{AccessLevel, Caller, Ownership, new_secret};
use svc_sys::private_file;

/// Prefix of results' URIs.
pub(super) const PREFIX: &str = "svc://result/";
/// Retention of a result.
const KEPT_FOR: Duration = Duration::from_hours(7 * 24);
/// Characters of a result that are in the response.
const SHOWN: usize = 2000;
/// The largest bound that a tool can declare for its results.
const MAX_RAISED: usize = 500_000;

/// The folder of large results. Cheap to clone.
#[derive(Debug, Clone)]
pub struct KeptResults {
    folder: Arc<Path>,
    bounds: ResultBounds,
}

/// Which results are kept, and how many bytes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultBounds {
    /// Bytes above which a result is kept.
    pub result_bytes: usize,
    /// Maximum bytes that are kept for one principal, of results and of files of resources each.
    /// The oldest are removed first.
    pub kept_bytes: u64,
}

/// Metadata of a kept result, in a file beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ResultLabel {
    owner: String,
    #[serde(default)]
    project: String,
    tool: String,
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptResult {
    pub uri: String,
    pub tool: String,
    pub bytes: usize,
}

impl KeptResults {
    pub(super) fn new(home: &Path, bounds: ResultBounds) -> Self {
        Self { folder: home.join("results").into(), bounds }
    }

    /// The bound for a tool's results, as its server declares it.
    pub(super) fn bound_of(&self, declared: &Value) -> usize {
        let raised =
            declared.get("_meta").and_then(|meta| meta.get("anthropic/maxResultSizeChars"));
        let raised = raised.and_then(Value::as_u64).and_then(|raised| usize::try_from(raised).ok());
        self.bounds.result_bytes.max(raised.unwrap_or(0).min(MAX_RAISED))
    }

    /// The response in place of a result above the bound.
    pub(super) async fn shorten(
        &self,
        caller: &Caller,
        tool: &str,
        bound: usize,
        output: Output,
    ) -> Output {
        let Some(text) = serialised(&output, bound) else { return output };
        let owner = caller.principal().to_string();
        let project = caller.project().unwrap_or_default().to_owned();
        let label = ResultLabel { owner, project, tool: tool.to_owned(), bytes: text.len() };
        let (this, is_error) = (self.clone(), output.is_error());
        let kept = tokio::task::spawn_blocking(move || {
            let answer =
                this.keep(&label, &text).map(|uri| answer_with(&uri, &label, &text, is_error));
            answer.and_then(|answer| RawValue::from_string(answer).map_err(io::Error::other))
        });
        match kept.await {
            Ok(Ok(answer)) => Output::Verbatim(answer),
            // The call was made, so a result that is too large is better than none.
            Ok(Err(error)) => {
                tracing::error!(%error, "a large result cannot be kept");
                output
            }
            Err(_) => output,
        }
    }

    fn keep(&self, label: &ResultLabel, text: &str) -> io::Result<String> {
        let own = short_hash(&label.owner);
        let folder = self.folder.join(&own);
        private_file::create_folder(&self.folder)?;
        private_file::create_folder(&folder)?;
        evict(&folder, "", text.len() as u64, self.bounds.kept_bytes)?;
        let id = new_secret().split_at(32).0.to_owned();
        private_file::create_new(&folder.join(format!("{id}.json")), text.as_bytes())?;
        // Written last. A result without its label is not found; the sweep removes it after a week.
        let written = serde_json::to_vec(label).map_err(io::Error::other)?;
        private_file::create_new(&folder.join(format!("{id}.label")), &written)?;
        Ok(format!("{PREFIX}{own}-{id}"))
    }

    pub(super) fn bounds(&self) -> ResultBounds {
        self.bounds
    }

    /// The file of a result that the caller may read.
    pub(super) fn find(&self, caller: &Caller, uri: &str) -> Option<(PathBuf, usize)> {
        let (own, id) = uri.strip_prefix(PREFIX)?.split_once('-')?;
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_name(own) || !is_name(id) {
            return None;
        }
        let folder = self.folder.join(own);
        let label = fs::read(folder.join(format!("{id}.label"))).ok()?;
        let label: ResultLabel = serde_json::from_slice(&label).ok()?;
        let owner = Ownership::from_row(&label.owner, label.project);
        if caller.access_to(&owner) == AccessLevel::Hidden {
            return None;
        }
        Some((folder.join(format!("{id}.json")), label.bytes))
    }

    pub fn list(&self, caller: &Caller) -> Vec<KeptResult> {
        let own = short_hash(&caller.principal().to_string());
        let entries = fs::read_dir(self.folder.join(&own)).into_iter().flatten().flatten();
        let mut all: Vec<KeptResult> = entries
            .filter_map(|entry| {
                let path = entry.path();
                path.extension().filter(|kind| *kind == "label")?;
                let label: ResultLabel = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
                let uri = format!("{PREFIX}{own}-{}", path.file_stem()?.to_str()?);
                Some(KeptResult { uri, tool: label.tool, bytes: label.bytes })
            })
            .collect();
        all.sort_by(|a, b| a.uri.cmp(&b.uri));
        all
    }

    /// A result that the caller may read; `None` if there is none with that URI.
    pub async fn read(&self, caller: &Caller, uri: &str) -> Option<String> {
        let (results, caller, uri) = (self.clone(), caller.clone(), uri.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let (path, _) = results.find(&caller, &uri)?;
            fs::read_to_string(path).ok()
        });
        read.await.ok().flatten()
    }

    /// Removes what is older than a week. `now` is the system's time.
    pub(super) fn sweep(&self, now: SystemTime) {
        for folder in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            remove_old(&folder.path(), now);
            // Fails for a folder that is not empty, which stays.
            fs::remove_dir(folder.path()).ok();
        }
    }
}

/// The name of a principal's folder and files.
fn short_hash(principal: &str) -> String {
    hex::encode(&Sha256::digest(principal)[..8])
}

/// Removes files that are older than a week from a folder.
pub(super) fn remove_old(folder: &Path, now: SystemTime) {
    for (path, _, modified) in files_of(folder) {
        if now.duration_since(modified).is_ok_and(|age| age > KEPT_FOR) {
            fs::remove_file(path).ok();
        }
    }
}

fn files_of(folder: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let meta = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((entry.path(), meta.len(), meta.modified().ok()?))
    });
    files.collect()
}

/// Stores the bytes of a resource in a file, and returns the file. The oldest files of the same
/// principal are evicted for it.
pub(super) fn keep_file(
    folder: &Path,
    caller: &Caller,
    bytes: &[u8],
    bounds: ResultBounds,
) -> io::Result<PathBuf> {
    let own = short_hash(&caller.principal().to_string());
    private_file::create_folder(folder)?;
    evict(folder, &own, bytes.len() as u64, bounds.kept_bytes)?;
    let path = folder.join(format!("{own}-{}", new_secret().split_at(24).0));
    private_file::create_new(&path, bytes)?;
    Ok(path)
}

/// Evicts the oldest files whose names have a prefix, until there is capacity for `more` bytes.
fn evict(folder: &Path, prefix: &str, more: u64, most: u64) -> io::Result<()> {
    let mut files = files_of(folder);
    files.retain(|(path, ..)| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
    });
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    files.sort_by_key(|(.., modified)| *modified);
    for (path, bytes, _) in files {
        if total + more <= most {
            break;
        }
        fs::remove_file(path)?;
        total -= bytes;
    }
    Ok(())
}

/// The serialised result, if it is larger than the bound.
fn serialised(output: &Output, bound: usize) -> Option<String> {
    let text: Cow<'_, str> = match output {
        Output::Verbatim(result) => Cow::Borrowed(result.get()),
        Output::Object(object) if object.get().len() * 2 <= bound => return None,
        Output::Object(object) => {
            let text = json!({ "type": "text", "text": object.get() });
            Cow::Owned(format!(r#"{{"content":[{text}],"structuredContent":{}}}"#, object.get()))
        }
        Output::Content { content, structured, is_error } => {
            let mut result = json!({ "content": content });
            if let Some(structured) = structured {
                result["structuredContent"] = structured.clone();
            }
            if *is_error {
                result["isError"] = json!(true);
            }
            Cow::Owned(result.to_string())
        }
    };
    (text.len() > bound).then(|| text.into_owned())
}

fn answer_with(uri: &str, label: &ResultLabel, text: &str, is_error: bool) -> String {
    let head: String = text.chars().take(SHOWN).collect();
    let link = json!({
        "type": "resource_link", "uri": uri, "name": label.tool, "mimeType": "application/json", "size": label.bytes,
        "description": "The whole result. It is kept for 7 days.",
    });
    let mut answer = json!({
        "content": [{ "type": "text", "text": head }, link],
        "structuredContent": { "uri": uri, "bytes": label.bytes },
    });
    if is_error {
        answer["isError"] = json!(true);
    }
    answer.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(key: &str, project: Option<&str>) -> Caller {
        Caller::of_session("tok_1", key, project, &[])
    }

    const fn bounds(result_bytes: usize, kept_bytes: u64) -> ResultBounds {
        ResultBounds { result_bytes, kept_bytes }
    }

    fn verbatim(text: &str) -> Output {
        Output::Verbatim(RawValue::from_string(text.to_owned()).expect("JSON"))
    }

    #[tokio::test]
    async fn large_result_is_kept_for_callers_with_access() {
        let home = tempfile::tempdir().expect("a folder");
        let kept = KeptResults::new(home.path(), bounds(4000, u64::MAX));
        let ada = session("ada", Some("/p"));
        let small = format!(r#"{{"content":[],"x":"{}"}}"#, "y".repeat(3979));
        assert_eq!(small.len(), 4000);
        let Output::Verbatim(same) = kept.shorten(&ada, "t", 4000, verbatim(&small)).await else {
            panic!("raw")
        };
        assert_eq!(same.get(), small);
        let large = format!(r#"{{"isError":true, "x":"{}"}}"#, "ü".repeat(3000));
        let Output::Verbatim(answer) = kept.shorten(&ada, "t", 4000, verbatim(&large)).await else {
            panic!("raw")
        };
        let answer: Value = serde_json::from_str(answer.get()).expect("JSON");
        let shown = answer["content"][0]["text"].as_str().expect("text");
        assert!(shown.chars().count() == 2000 && large.starts_with(shown));
        let uri = answer["structuredContent"]["uri"].as_str().expect("a URI").to_owned();
        assert_eq!(
            (&answer["content"][1]["type"], &answer["content"][1]["uri"]),
            (&json!("resource_link"), &json!(uri))
        );
        assert_eq!(
            (&answer["structuredContent"]["bytes"], &answer["isError"]),
            (&json!(large.len()), &json!(true))
        );
        for (caller, may) in [
            (Caller::Operator, true),
            (ada.clone(), true),
            (session("bob", Some("/p")), true),
            (session("bob", Some("/q")), false),
            (session("bob", None), false),
        ] {
            let found = kept.find(&caller, &uri);
            assert_eq!(found.is_some(), may, "{caller:?}");
            if let Some((path, bytes)) = found {
                assert_eq!(
                    (fs::read_to_string(path).expect("is there"), bytes),
                    (large.clone(), large.len())
                );
            }
        }
        assert_eq!(
            kept.list(&ada),
            [KeptResult { uri: uri.clone(), tool: "t".to_owned(), bytes: large.len() }]
        );
        assert_eq!(kept.list(&session("bob", Some("/p"))), []);
        for wrong in
            ["svc://result/", "svc://result/a-../b", "svc://result/..-a", "svc://stream/team"]
        {
            assert_eq!(kept.find(&Caller::Operator, wrong), None, "{wrong}");
        }
        let (path, _) = kept.find(&ada, &uri).expect("is there");
        let written = fs::metadata(path).and_then(|meta| meta.modified()).expect("a time");
        kept.sweep(written + KEPT_FOR - Duration::from_mins(1));
        assert!(kept.find(&ada, &uri).is_some());
        kept.sweep(written + KEPT_FOR + Duration::from_mins(1));
        assert_eq!(kept.find(&ada, &uri), None);
        assert_eq!(fs::read_dir(home.path().join("results")).expect("a folder").count(), 0);
    }

    #[test]
    fn oldest_files_of_a_principal_are_evicted() {
        let home = tempfile::tempdir().expect("a folder");
        let (ada, bob) = (session("ada", None), session("bob", None));
        let keep = |caller: &Caller, age: u64| {
            let path =
                keep_file(home.path(), caller, &[0; 40], bounds(400_000, 100)).expect("is kept");
            let file = fs::File::options().append(true).open(&path).expect("is there");
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age);
            file.set_modified(modified).expect("is set");
            path
        };
        let of_bob = keep(&bob, 900);
        let paths = [keep(&ada, 300), keep(&ada, 200), keep(&ada, 100)];
        let are_there = paths.each_ref().map(|path| path.exists());
        assert_eq!(are_there, [false, true, true]);
        assert!(of_bob.exists(), "nobody makes room for another");
    }

    #[test]
    fn tool_raises_its_bound_up_to_the_maximum() {
        let kept = KeptResults::new(Path::new("/"), bounds(400_000, u64::MAX));
        for (declared, bound) in [
            (json!({}), 400_000),
            (json!({ "_meta": { "anthropic/maxResultSizeChars": 450_000 } }), 450_000),
            (json!({ "_meta": { "anthropic/maxResultSizeChars": 5_000_000 } }), 500_000),
            (json!({ "_meta": { "anthropic/maxResultSizeChars": 10 } }), 400_000),
            (json!({ "_meta": { "anthropic/maxResultSizeChars": "x" } }), 400_000),
        ] {
            assert_eq!(kept.bound_of(&declared), bound, "{declared}");
        }
        let kept = KeptResults::new(Path::new("/"), bounds(600_000, u64::MAX));
        assert_eq!(kept.bound_of(&json!({})), 600_000);
    }
}
