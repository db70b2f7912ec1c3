//! What the bridge has to know of the daemon's tools: which may be called twice, and which want arguments in headers.
//!
//! Most bridges live without ever asking. Only a call that was cut off, or refused for its headers, makes one look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::call::{Call, own_request};
use super::exchange::Bridge;

/// Pages of the list that are read before something must be wrong with it.
const PAGES: usize = 100;

/// The tools as they were last listed.
#[derive(Debug, Default)]
pub(super) struct Tools(Mutex<HashMap<String, Arc<Tool>>>);

/// The part of a tool's description that matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tool {
    name: String,
    /// Which arguments are repeated in headers.
    #[serde(default)]
    pub(super) input_schema: Value,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Annotations {
    read_only_hint: bool,
    idempotent_hint: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    tools: Vec<Tool>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
struct Params<'a> {
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

impl Tools {
    /// A tool, if it was ever looked up.
    pub(super) fn get(&self, name: &str) -> Option<Arc<Tool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn replace(&self, tools: HashMap<String, Arc<Tool>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tools;
    }
}

impl Bridge {
    /// Lists the tools anew, for a restart may have changed them: in the words of the call that needs it, or without
    /// any.
    pub(super) async fn learn_tools(&self, call: &Call) -> Result<(), String> {
        let (mut tools, mut cursor) = (HashMap::new(), None::<String>);
        for _ in 0..PAGES {
            let params = Params { meta: call.meta.as_deref(), cursor: cursor.as_deref() };
            let request = own_request("svc-stdio-tools", "tools/list", &params);
            let (_, result) = self.ask(&request).await?;
            let page: Page =
                serde_json::from_str(result.get()).map_err(|error| error.to_string())?;
            tools.extend(page.tools.into_iter().map(|tool| (tool.name.clone(), Arc::new(tool))));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        self.tools.replace(tools);
        Ok(())
    }

    /// Whether a call may be sent again although it may have done its work already.
    pub(super) async fn is_repeatable(&self, call: &Call) -> bool {
        if call.tools.is_empty() {
            return true;
        }
        if self.learn_tools(call).await.is_err() {
            return false;
        }
        call.tools.iter().all(|name| {
            self.tools.get(name).is_some_and(|tool| {
                tool.annotations.read_only_hint || tool.annotations.idempotent_hint
            })
        })
    }
}
