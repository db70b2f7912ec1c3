//! A prompt that Codex shows its person: read from the request of its app-server, and answered by
//! the result of that request. Codex shows its own dialog meanwhile, and the first answer counts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::prompt::{
    AnswerRequest, RefusedAnswer, answers_to_all, choices, labels, list, one_line, option, text,
};
use crate::{
    agent::{RequestKind, RequestOption, RequestOptionKind},
    json_is_deeper, limits,
};

// The client's words for its answers, which are the ids of the options.
const ACCEPT: &str = "accept";
const ACCEPT_FOR_SESSION: &str = "acceptForSession";
/// Refuses; the turn goes on.
const DECLINE: &str = "decline";
/// Refuses; the turn is interrupted.
const CANCEL: &str = "cancel";
/// Offered decisions that write a rule.
const COMMAND_RULE: &str = "acceptWithExecpolicyAmendment";
const NETWORK_RULE: &str = "applyNetworkPolicyAmendment";
/// Parameters that do not describe the action.
const PLUMBING: &str = "_meta approvalId availableDecisions commandActions cwd environmentId itemId kind \
    requestedSchema startedAtMs threadId turnId";

/// The requests of the app-server that a person answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum CodexRequest {
    #[serde(rename = "item/commandExecution/requestApproval")]
    Command,
    #[serde(rename = "item/fileChange/requestApproval")]
    FileChange,
    #[serde(rename = "item/tool/requestUserInput")]
    Question,
    #[serde(rename = "mcpServer/elicitation/request")]
    Elicitation,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodexPrompt {
    method: CodexRequest,
    /// The same on every connection, unlike the id of the request.
    pub id: String,
    params: Value,
    /// The file changes that the prompt is about: `{path, kind, diff}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    changes: Vec<Value>,
    /// Whether this version of Codex is known to accept `decline` where it does not offer it.
    takes_decline: bool,
}

impl CodexPrompt {
    /// `None` for a request that no person answers, or that is deeper than what can be shown of it.
    pub fn read(method: &str, params: &Value, takes_decline: bool) -> Option<Self> {
        if json_is_deeper(params, limits::JSON_LEVELS) {
            return None;
        }
        let method = CodexRequest::deserialize(Value::from(method)).ok()?;
        let word = |name: &str| params[name].as_str();
        let id = match (word("itemId"), word("approvalId")) {
            (Some(item), Some(approval)) => format!("{item}/{approval}"),
            (Some(item), None) => item.to_owned(),
            (None, _) => {
                let words = ["turnId", "serverName", "elicitationId", "message"];
                words.map(|name| word(name).unwrap_or_default()).join("/")
            }
        };
        let is_asking = method != CodexRequest::Question || params["questions"][0].is_object();
        let params = params.clone();
        is_asking.then_some(Self { method, id, params, changes: Vec::new(), takes_decline })
    }

    pub fn item(&self) -> Option<&str> {
        self.params["itemId"].as_str()
    }

    /// Adds the file changes that the prompt's item would make.
    #[must_use]
    pub fn with_changes(self, changes: Vec<Value>) -> Self {
        Self { changes, ..self }
    }

    /// Working folder of the action.
    pub fn cwd(&self) -> Option<&str> {
        self.params["cwd"].as_str()
    }

    fn is_tool_call(&self) -> bool {
        self.params["_meta"]["codex_approval_kind"] == "mcp_tool_call"
    }

    /// Whether an MCP server asks a person for values, which only the terminal's form takes.
    fn is_form(&self) -> bool {
        let fields = self.params["requestedSchema"]["properties"].as_object();
        self.method == CodexRequest::Elicitation
            && !self.is_tool_call()
            && (fields.is_some_and(|fields| !fields.is_empty()) || self.params["mode"] == "url")
    }

    pub fn kind(&self) -> RequestKind {
        match self.method {
            CodexRequest::Command | CodexRequest::FileChange => RequestKind::Permission,
            CodexRequest::Elicitation if self.is_tool_call() => RequestKind::Permission,
            CodexRequest::Question | CodexRequest::Elicitation => RequestKind::Question,
        }
    }

    pub fn title(&self) -> String {
        let word = |name: &str| text(&self.params[name]).map(str::to_owned);
        let told = match self.method {
            CodexRequest::Command => {
                let host = text(&self.params["networkApprovalContext"]["host"]);
                word("command").or_else(|| host.map(|host| format!("connect to {host}")))
            }
            CodexRequest::FileChange => {
                let paths: Vec<_> =
                    self.changes.iter().filter_map(|it| it["path"].as_str()).collect();
                (!paths.is_empty()).then(|| paths.join(", "))
            }
            CodexRequest::Question => {
                text(&self.params["questions"][0]["question"]).map(str::to_owned)
            }
            CodexRequest::Elicitation => word("message"),
        };
        one_line(&told.or_else(|| word("reason")).unwrap_or_else(|| self.name().to_owned()))
    }

    fn name(&self) -> &str {
        match self.method {
            CodexRequest::Command => "shell",
            CodexRequest::FileChange => "apply_patch",
            CodexRequest::Question => "request_user_input",
            CodexRequest::Elicitation => {
                let server = self.params["serverName"].as_str();
                let tool = self.params["_meta"]["tool_name"].as_str();
                tool.or(server).unwrap_or("mcp")
            }
        }
    }

    pub fn tool(&self) -> Value {
        let mut input = self.params.as_object().cloned().unwrap_or_default();
        let is_plumbing = |name: &str| PLUMBING.split(' ').any(|plumbing| plumbing == name);
        input.retain(|name, value| !is_plumbing(name) && !value.is_null());
        if !self.changes.is_empty() {
            input.insert("changes".to_owned(), Value::from(self.changes.clone()));
        }
        if let Some(arguments) = self.params["_meta"].get("tool_params") {
            input.insert("arguments".to_owned(), arguments.clone());
        }
        json!({ "name": self.name(), "input": Value::Object(input) })
    }

    pub fn options(&self) -> Vec<RequestOption> {
        match self.method {
            CodexRequest::Command | CodexRequest::FileChange => self.decisions(),
            CodexRequest::Question => choices(labels(self.questions(), None)).collect(),
            CodexRequest::Elicitation => {
                let accept = option(ACCEPT, "Yes", RequestOptionKind::AllowOnce);
                let decline = option(DECLINE, "No", RequestOptionKind::Deny);
                if self.is_form() { vec![decline] } else { vec![accept, decline] }
            }
        }
    }

    /// Whether the prompt is about file changes that this connection has not received.
    fn is_unseen(&self) -> bool {
        self.method == CodexRequest::FileChange
            && self.changes.is_empty()
            && self.params["grantRoot"].is_null()
    }

    fn offered(&self) -> &[Value] {
        list(&self.params["availableDecisions"])
    }

    fn decisions(&self) -> Vec<RequestOption> {
        let offers = |decision: &str| self.offered().iter().any(|it| it == decision);
        let deny = if self.takes_decline || offers(DECLINE) {
            option(DECLINE, "No", RequestOptionKind::Deny)
        } else {
            option(CANCEL, "No, and end the turn", RequestOptionKind::Deny)
        };
        if self.is_unseen() {
            return vec![deny];
        }
        let mut options = vec![option(ACCEPT, "Yes", RequestOptionKind::AllowOnce)];
        if offers(ACCEPT_FOR_SESSION)
            || self.method == CodexRequest::FileChange && self.offered().is_empty()
        {
            let name = "Yes, and do not ask for this again until the session ends";
            options.push(option(ACCEPT_FOR_SESSION, name, RequestOptionKind::AllowAlways));
        }
        options.extend(self.rules().map(|(id, name, _)| {
            option(id, format!("Yes, and {name}"), RequestOptionKind::AllowAlways)
        }));
        options.push(deny);
        options
    }

    /// The offered decisions that write a rule: id, what the rule does, and the decision.
    fn rules(&self) -> impl Iterator<Item = (String, String, &Value)> {
        self.offered().iter().enumerate().filter_map(|(number, decision)| {
            let words = list(&decision[COMMAND_RULE]["execpolicy_amendment"]).iter();
            let words: Vec<_> = words.filter_map(Value::as_str).collect();
            let network = &decision[NETWORK_RULE]["network_policy_amendment"];
            let (kind, name) = if !words.is_empty() {
                let name = format!("always allow commands that start with {:?}", words.join(" "));
                (COMMAND_RULE, name)
            } else if network["action"] == "allow" {
                let host = network["host"].as_str()?;
                (NETWORK_RULE, format!("always allow connections to {host:?}"))
            } else {
                return None;
            };
            Some((format!("{kind}_{}", number + 1), name, decision))
        })
    }

    fn questions(&self) -> &[Value] {
        list(&self.params["questions"])
    }

    pub fn output(&self, answer: &AnswerRequest) -> Result<Value, RefusedAnswer> {
        if self.method == CodexRequest::Question {
            return Ok(json!({ "answers": self.answers(answer)? }));
        }
        if answer.answers.is_some() {
            return Err(RefusedAnswer::Answers);
        }
        // Codex has no words for a denial.
        if answer.text.is_some() {
            return Err(RefusedAnswer::Text);
        }
        let id = answer.option_id.as_deref().ok_or(RefusedAnswer::Option)?;
        if !self.options().iter().any(|option| option.option_id == id) {
            return Err(RefusedAnswer::Option);
        }
        if self.method == CodexRequest::Elicitation {
            return Ok(match id {
                ACCEPT => json!({ "action": ACCEPT, "content": {} }),
                _ => json!({ "action": DECLINE }),
            });
        }
        let rule = self.rules().find(|(rule, ..)| rule == id);
        Ok(json!({ "decision": rule.map_or_else(|| Value::from(id), |(.., it)| it.clone()) }))
    }

    /// The answers to all questions by their ids: a list of texts for each.
    fn answers(&self, answer: &AnswerRequest) -> Result<Map<String, Value>, RefusedAnswer> {
        let given = |texts: Vec<String>| json!({ "answers": texts });
        let id = |question: &Value| question["id"].as_str().unwrap_or_default().to_owned();
        let questions = self.questions();
        if let Some(all) = &answer.answers {
            let asked: Option<Vec<_>> =
                questions.iter().map(|it| it["question"].as_str()).collect();
            let words = answers_to_all(all, &asked.ok_or(RefusedAnswer::Answers)?)?;
            return Ok(questions.iter().map(id).zip(words.into_iter().map(given)).collect());
        }
        let [question] = questions else { return Err(RefusedAnswer::Answers) };
        let words = answer.to_one_question(&labels(questions, None))?;
        Ok(Map::from_iter([(id(question), given(vec![words.to_owned()]))]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request to run a command, as Codex 0.169.0 sent it.
    fn command() -> Value {
        json!({
            "kind": "command", "threadId": "01a20d52-346b-7852-bcf7-dc42a786c0e6",
            "turnId": "01a20d52-4070-7a71-90c5-e38421caa762", "itemId": "call_debe792a5f1a60dcce",
            "startedAtMs": 1_795_519_824_171_u64, "environmentId": "local", "reason": "May I?",
            "command": "/bin/bash -lc 'touch made'", "cwd": "/home/user/work",
            "commandActions": [{ "type": "unknown", "command": "touch made" }],
            "proposedExecpolicyAmendment": ["touch", "made"],
            "availableDecisions": ["accept",
                { "acceptWithExecpolicyAmendment": { "execpolicy_amendment": ["touch", "made"] } },
                "cancel"],
        })
    }

    fn read(method: &str, params: &Value) -> CodexPrompt {
        CodexPrompt::read(method, params, true).unwrap()
    }

    fn chosen(id: &str) -> AnswerRequest {
        AnswerRequest { option_id: Some(id.to_owned()), ..AnswerRequest::default() }
    }

    fn ids(prompt: &CodexPrompt) -> Vec<String> {
        prompt.options().into_iter().map(|option| option.option_id).collect()
    }

    #[test]
    fn a_command_is_answered_by_a_decision_that_the_client_offers_or_takes() {
        let method = "item/commandExecution/requestApproval";
        let prompt = read(method, &command());
        assert_eq!(prompt.kind(), RequestKind::Permission);
        assert_eq!(prompt.title(), "/bin/bash -lc 'touch made'");
        assert_eq!(
            (prompt.id.as_str(), prompt.cwd()),
            ("call_debe792a5f1a60dcce", Some("/home/user/work"))
        );
        assert_eq!(ids(&prompt), [ACCEPT, "acceptWithExecpolicyAmendment_2", DECLINE]);
        assert!(prompt.options()[1].name.ends_with("commands that start with \"touch made\""));
        assert_eq!(prompt.output(&chosen(ACCEPT)), Ok(json!({ "decision": "accept" })));
        let rule = json!({ "decision": command()["availableDecisions"][1] });
        assert_eq!(prompt.output(&chosen("acceptWithExecpolicyAmendment_2")), Ok(rule));
        assert_eq!(prompt.output(&chosen(DECLINE)), Ok(json!({ "decision": "decline" })));
        assert_eq!(prompt.output(&chosen(CANCEL)), Err(RefusedAnswer::Option));
        let words = AnswerRequest { text: Some("use make".to_owned()), ..chosen(DECLINE) };
        assert_eq!(prompt.output(&words), Err(RefusedAnswer::Text));
        // For this version, nobody has tried an option that it does not offer.
        let prompt = CodexPrompt::read(method, &command(), false).unwrap();
        let deny = prompt.options().pop().unwrap();
        assert_eq!((deny.option_id.as_str(), deny.name.as_str()), (CANCEL, "No, and end the turn"));
        assert_eq!(prompt.output(&chosen(CANCEL)), Ok(json!({ "decision": "cancel" })));
    }

    #[test]
    fn changed_files_are_shown_with_their_differences() {
        let params = json!({ "threadId": "t", "turnId": "u", "itemId": "call_1", "reason": null });
        let changes = vec![json!({ "path": "a.txt", "kind": { "type": "add" }, "diff": "one\n" })];
        let prompt = read("item/fileChange/requestApproval", &params).with_changes(changes.clone());
        assert_eq!(prompt.title(), "a.txt");
        assert_eq!(
            prompt.tool(),
            json!({ "name": "apply_patch", "input": { "changes": changes } })
        );
        assert_eq!(ids(&prompt), [ACCEPT, ACCEPT_FOR_SESSION, DECLINE]);
        // Changes that cannot be shown cannot be allowed.
        assert_eq!(ids(&read("item/fileChange/requestApproval", &params)), [DECLINE]);
    }

    #[test]
    fn questions_are_answered_by_their_ids() {
        let colour = json!({ "id": "colour", "header": "Colour", "question": "Which colour?",
            "options": [{ "label": "Red", "description": "r" }, { "label": "Blue" }] });
        let params = json!({ "threadId": "t", "turnId": "u", "itemId": "call_1",
            "questions": [colour.clone()] });
        let prompt = read("item/tool/requestUserInput", &params);
        assert_eq!(
            (prompt.kind(), prompt.title()),
            (RequestKind::Question, "Which colour?".to_owned())
        );
        let blue = json!({ "answers": { "colour": { "answers": ["Blue"] } } });
        assert_eq!(prompt.output(&chosen("choice_2")), Ok(blue.clone()));
        let text = AnswerRequest { text: Some("Blue".to_owned()), ..AnswerRequest::default() };
        assert_eq!(prompt.output(&text), Ok(blue));
        assert_eq!(prompt.output(&chosen("choice_3")), Err(RefusedAnswer::Option));
        let size = json!({ "id": "size", "question": "Which size?", "options": null });
        let params = json!({ "itemId": "call_1", "questions": [colour, size] });
        let prompt = read("item/tool/requestUserInput", &params);
        assert_eq!(ids(&prompt), Vec::<String>::new());
        assert_eq!(prompt.output(&text), Err(RefusedAnswer::Answers));
        let all = json!({ "Which colour?": "Blue", "Which size?": ["S", "M"] });
        let answer =
            AnswerRequest { answers: all.as_object().cloned(), ..AnswerRequest::default() };
        let expected = json!({ "answers": {
            "colour": { "answers": ["Blue"] }, "size": { "answers": ["S", "M"] } } });
        assert_eq!(prompt.output(&answer), Ok(expected));
    }

    #[test]
    fn an_mcp_server_is_answered_unless_it_asks_for_values() {
        let method = "mcpServer/elicitation/request";
        let params = json!({ "threadId": "t", "turnId": "u", "serverName": "bus", "mode": "form",
            "message": "Allow bus to run tool \"echo\"?",
            "requestedSchema": { "type": "object", "properties": {} },
            "_meta": { "codex_approval_kind": "mcp_tool_call", "tool_params": { "text": "x" } } });
        let prompt = read(method, &params);
        assert_eq!(prompt.kind(), RequestKind::Permission);
        assert_eq!(prompt.tool()["input"]["arguments"], json!({ "text": "x" }));
        let accepted = json!({ "action": "accept", "content": {} });
        assert_eq!(prompt.output(&chosen(ACCEPT)), Ok(accepted));
        assert_eq!(prompt.output(&chosen(DECLINE)), Ok(json!({ "action": "decline" })));
        let form = json!({ "serverName": "bus", "message": "Who?",
            "requestedSchema": { "properties": { "name": { "type": "string" } } } });
        assert_eq!(ids(&read(method, &form)), [DECLINE]);
    }

    #[test]
    fn other_requests_are_no_prompts() {
        for method in ["item/tool/call", "item/tool/requestUserInput", "account/refresh"] {
            assert_eq!(CodexPrompt::read(method, &json!({ "itemId": "x" }), true), None);
        }
        let prompt = read("item/commandExecution/requestApproval", &command());
        let kept = serde_json::to_value(&prompt).unwrap();
        assert_eq!(serde_json::from_value::<CodexPrompt>(kept).unwrap(), prompt);
    }
}
