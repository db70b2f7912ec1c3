//! What results have in common: the members that a revision adds to each.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use svc_wire::mcp::meta;

/// The era of a request, as far as its answer depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerEra {
    /// Revisions with sessions, and bare calls.
    Legacy,
    Stateless,
}

/// A result as the client's era has it: the members that were asked for, and beside them those of
/// the stateless revisions.
#[derive(Debug, Serialize)]
pub(crate) struct EraResult<T> {
    #[serde(flatten)]
    members: T,
    #[serde(flatten)]
    stateless: Option<StatelessMembers>,
}

/// The members that every result of a stateless revision has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatelessMembers {
    result_type: ResultType,
    #[serde(flatten)]
    cache: Option<CacheHint>,
    #[serde(rename = "_meta")]
    meta: ServerMeta,
}

/// What kind of result it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResultType {
    Complete,
    /// The client has to answer questions, and to send the request again.
    InputRequired,
    /// The call goes on as a task.
    Task,
}

/// How long a result may be kept, and by whom.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CacheHint {
    pub(crate) ttl_ms: u32,
    pub(crate) cache_scope: CacheScope,
}

/// For whom a kept result holds.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheScope {
    /// Every caller gets the same.
    Public,
    /// Another caller may get another.
    Private,
}

#[derive(Debug, Serialize)]
pub(crate) struct Empty {}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ServerInfo {
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'static str>,
    version: &'static str,
}

/// The server, as `initialize` introduces it.
pub(crate) const SERVER_INFO: ServerInfo =
    ServerInfo { name: "svc", title: Some("svc"), version: env!("CARGO_PKG_VERSION") };

#[derive(Debug)]
struct ServerMeta;

impl Serialize for ServerMeta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(meta::SERVER_INFO, ServerInfo { title: None, ..SERVER_INFO })])
    }
}

impl<T: Serialize> EraResult<T> {
    /// A result that is the whole answer.
    pub(crate) fn complete(era: AnswerEra, members: T, cache: Option<CacheHint>) -> Self {
        match era {
            AnswerEra::Legacy => Self { members, stateless: None },
            AnswerEra::Stateless => Self::stateless(ResultType::Complete, members, cache),
        }
    }

    /// A result of a stateless revision.
    pub(crate) fn stateless(result_type: ResultType, members: T, cache: Option<CacheHint>) -> Self {
        let stateless = StatelessMembers { result_type, cache, meta: ServerMeta };
        Self { members, stateless: Some(stateless) }
    }
}

/// A server's result as the client's era has it. A stateless client wants to know what kind of
/// result it is, and of some how long it may be kept; all else passes as it is.
pub(crate) fn raw_in_era(
    result: &RawValue,
    era: AnswerEra,
    cache: Option<CacheHint>,
) -> Cow<'_, RawValue> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Known<'a> {
        #[serde(borrow)]
        result_type: Option<&'a RawValue>,
        #[serde(borrow)]
        ttl_ms: Option<&'a RawValue>,
        #[serde(borrow)]
        cache_scope: Option<&'a RawValue>,
    }
    let text = result.get();
    let (AnswerEra::Stateless, Ok(known)) = (era, serde_json::from_str::<Known<'_>>(text)) else {
        return Cow::Borrowed(result);
    };
    let Some(members) = text.strip_prefix('{') else { return Cow::Borrowed(result) };
    let mut added = Vec::new();
    if known.result_type.is_none() {
        added.push("\"resultType\":\"complete\"".to_owned());
    }
    if let (Some(cache), None, None) = (cache, known.ttl_ms, known.cache_scope) {
        let CacheHint { ttl_ms, cache_scope } = cache;
        let scope = match cache_scope {
            CacheScope::Public => "public",
            CacheScope::Private => "private",
        };
        added.push(format!("\"ttlMs\":{ttl_ms},\"cacheScope\":\"{scope}\""));
    }
    if added.is_empty() {
        return Cow::Borrowed(result);
    }
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    match RawValue::from_string(format!("{{{}{comma}{members}", added.join(","))) {
        Ok(typed) => Cow::Owned(typed),
        Err(_) => Cow::Borrowed(result),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    struct Members<'a> {
        raw: &'a RawValue,
    }

    #[test]
    fn raw_results_get_what_their_era_needs_and_keep_all_else() {
        let cache = Some(CacheHint { ttl_ms: 0, cache_scope: CacheScope::Private });
        for (result, era, cache, expected) in [
            (r#"{"a": 1.0}"#, AnswerEra::Legacy, cache, r#"{"a": 1.0}"#),
            (r#"{"a": 1.0}"#, AnswerEra::Stateless, None, r#"{"resultType":"complete","a": 1.0}"#),
            ("{ }", AnswerEra::Stateless, None, r#"{"resultType":"complete" }"#),
            (
                "{}",
                AnswerEra::Stateless,
                cache,
                r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#,
            ),
            (
                r#"{"ttlMs":5,"cacheScope":"public","resultType":"complete"}"#,
                AnswerEra::Stateless,
                cache,
                r#"{"ttlMs":5,"cacheScope":"public","resultType":"complete"}"#,
            ),
        ] {
            let raw = RawValue::from_string(result.to_owned()).unwrap();
            assert_eq!(raw_in_era(&raw, era, cache).get(), expected, "{result}");
        }
    }

    #[test]
    fn members_stand_beside_those_of_the_era() {
        let raw = RawValue::from_string("[1.0,  2]".to_owned()).unwrap();
        let result = EraResult::complete(AnswerEra::Legacy, Members { raw: &raw }, None);
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(text, r#"{"raw":[1.0,  2]}"#);
        let cache = CacheHint { ttl_ms: 5, cache_scope: CacheScope::Private };
        let result =
            EraResult::stateless(ResultType::InputRequired, Members { raw: &raw }, Some(cache));
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            serde_json::to_value(result).unwrap(),
            json!({
                "raw": [1.0, 2], "resultType": "input_required", "ttlMs": 5, "cacheScope": "private",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "svc", "version": version } },
            })
        );
    }
}
