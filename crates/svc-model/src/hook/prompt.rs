//! A prompt that a client shows its person, and its answer: what all clients share, and the prompts
//! that a hook reports, Claude Code's and opencode's.
//!
//! The client shows its dialog while the hook waits, and the first answer counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use serde_with::skip_serializing_none;

use crate::{
    NOT_BLANK,
    agent::{RequestKind, RequestOption, RequestOptionKind},
    json_is_deeper, limits,
};

/// The tools by which a model asks its person something.
pub(super) const QUESTIONS: [&str; 2] = ["AskUserQuestion", "request_user_input"];
/// Arguments that describe a call best. The first one that the call has is shown.
const TELLING: [&str; 9] =
    ["command", "file_path", "path", "url", "query", "pattern", "plan", "description", "prompt"];
/// Prefix of the ids of a question's options, before the number of the label.
const CHOICE: &str = "choice_";

/// An answer to a request.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AnswerRequest {
    /// The chosen option.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub option_id: Option<String>,
    /// The answer to a question, as text.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub text: Option<String>,
    /// Answers by question, each a text or a list of texts: of a request with several questions.
    pub answers: Option<Map<String, Value>>,
    /// That an option which holds from now on is meant.
    pub confirm: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedAnswer {
    /// There is no such option, or none was chosen.
    Option,
    Text,
    /// The answers do not match the questions.
    Answers,
    /// The answer to this question is empty.
    Empty(String),
}

impl AnswerRequest {
    /// The answer to a single question with these labels: the text, or the label of the option.
    pub(super) fn to_one_question<'a>(
        &'a self,
        labels: &[&'a str],
    ) -> Result<&'a str, RefusedAnswer> {
        match (self.option_id.as_deref(), self.text.as_deref()) {
            (None, Some(text)) => Ok(text),
            (None, None) => Err(RefusedAnswer::Option),
            (Some(_), Some(_)) => Err(RefusedAnswer::Text),
            (Some(id), None) => {
                let number = id.strip_prefix(CHOICE).and_then(|number| number.parse().ok());
                let label = number.and_then(|number: usize| labels.get(number.checked_sub(1)?));
                label.copied().ok_or(RefusedAnswer::Option)
            }
        }
    }
}

/// A list of texts for each of these questions; fails if `given` answers other questions, has other
/// values, or an empty answer.
pub(super) fn answers_to_all(
    given: &Map<String, Value>,
    questions: &[&str],
) -> Result<Vec<Vec<String>>, RefusedAnswer> {
    let texts = |question: &&str| match given.get(*question)? {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let all: Option<Vec<Vec<String>>> = questions.iter().map(texts).collect();
    let all = all.filter(|_| given.len() == questions.len()).ok_or(RefusedAnswer::Answers)?;
    let is_empty = |texts: &Vec<String>| texts.iter().all(|text| text.trim().is_empty());
    match all.iter().position(is_empty) {
        Some(at) => Err(RefusedAnswer::Empty(questions[at].to_owned())),
        None => Ok(all),
    }
}

/// What a call of a tool is about, on one line.
pub(super) fn title_of_tool(tool: &str, arguments: &Value) -> String {
    let question = arguments["questions"][0]["question"].as_str();
    let told = TELLING.iter().find_map(|name| text(&arguments[*name]));
    one_line(question.or(told).unwrap_or(tool))
}

/// A text that is not blank.
pub(super) fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.trim().is_empty())
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text within its bound, on one line.
pub fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(limits::WAITING_TITLE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// An option that takes no text.
pub(super) fn option(
    id: impl Into<String>,
    name: impl Into<String>,
    kind: RequestOptionKind,
) -> RequestOption {
    RequestOption { option_id: id.into(), name: name.into(), kind, text: false }
}

/// The labels of the only question; none if there are several, or if it takes several labels, as
/// its field `takes_several` says.
pub(super) fn labels<'a>(questions: &'a [Value], takes_several: Option<&str>) -> Vec<&'a str> {
    match questions {
        [question] if takes_several.is_none_or(|field| question[field] != true) => {
            list(&question["options"]).iter().filter_map(|it| it["label"].as_str()).collect()
        }
        _ => Vec::new(),
    }
}

/// The options of a question with these labels.
pub(super) fn choices(labels: Vec<&str>) -> impl Iterator<Item = RequestOption> {
    labels.into_iter().enumerate().map(|(number, label)| {
        option(format!("{CHOICE}{}", number + 1), label, RequestOptionKind::Choice)
    })
}

/// Id of Claude Code's option that allows the call once.
const ALLOW: &str = "allow";
/// Id of Claude Code's option that denies the call.
const DENY: &str = "deny";
/// Prefix of the ids of options that change what is allowed, before the number of the suggestion.
const ALWAYS_PREFIX: &str = "always_";

/// What Claude Code asks: the part of its `PermissionRequest` hook's input that an answer needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaudePrompt {
    pub tool_name: String,
    #[serde(default)]
    pub tool_input: Map<String, Value>,
    /// Changes of permissions that the client offers, in its own form.
    #[serde(default)]
    permission_suggestions: Vec<Value>,
}

impl ClaudePrompt {
    /// `None` if the input names no tool, or is deeper than what can be shown of it.
    pub fn read(payload: &Value) -> Option<Self> {
        if json_is_deeper(payload, limits::JSON_LEVELS) {
            return None;
        }
        let prompt = Self::deserialize(payload).ok()?;
        (!prompt.tool_name.trim().is_empty()).then_some(prompt)
    }

    pub fn kind(&self) -> RequestKind {
        if self.is_question() { RequestKind::Question } else { RequestKind::Permission }
    }

    pub fn title(&self) -> String {
        title_of_tool(&self.tool_name, &Value::Object(self.tool_input.clone()))
    }

    pub fn tool(&self) -> Value {
        json!({ "name": self.tool_name, "input": self.tool_input })
    }

    fn is_question(&self) -> bool {
        QUESTIONS.contains(&self.tool_name.as_str()) && !self.questions().is_empty()
    }

    fn questions(&self) -> &[Value] {
        self.tool_input.get("questions").map_or(&[], list)
    }

    fn labels(&self) -> Vec<&str> {
        labels(self.questions(), Some("multiSelect"))
    }

    pub fn options(&self) -> Vec<RequestOption> {
        use RequestOptionKind::{AllowAlways, AllowOnce, Deny};
        let deny = |name: &str| RequestOption { text: true, ..option(DENY, name, Deny) };
        if self.is_question() {
            return choices(self.labels()).chain([deny("Do not answer")]).collect();
        }
        let always = self.permission_suggestions.iter().enumerate();
        let always = always.filter_map(|(number, suggestion)| {
            let name = format!("Yes, and {}", change_in_words(suggestion)?);
            Some(option(format!("{ALWAYS_PREFIX}{}", number + 1), name, AllowAlways))
        });
        let once = std::iter::once(option(ALLOW, "Yes", AllowOnce));
        once.chain(always).chain([deny("No")]).collect()
    }

    pub fn output(&self, answer: &AnswerRequest) -> Result<Value, RefusedAnswer> {
        let decision = self.decision(answer)?;
        Ok(json!({ "hookSpecificOutput": {
            "hookEventName": "PermissionRequest",
            "decision": decision,
        } }))
    }

    fn decision(&self, answer: &AnswerRequest) -> Result<Value, RefusedAnswer> {
        let id = answer.option_id.as_deref();
        if id == Some(DENY) {
            let message = answer.text.as_deref().unwrap_or("Permission denied");
            return Ok(json!({ "behavior": "deny", "message": message }));
        }
        if self.is_question() {
            let mut input = self.tool_input.clone();
            input.insert("answers".to_owned(), Value::Object(self.answers(answer)?));
            return Ok(json!({ "behavior": "allow", "updatedInput": input }));
        }
        if answer.answers.is_some() {
            return Err(RefusedAnswer::Answers);
        }
        let mut decision = json!({ "behavior": "allow" });
        // Claude Code takes a plan as approved only if the decision has an `updatedInput`.
        if self.tool_name == "ExitPlanMode" {
            decision["updatedInput"] = json!({});
        }
        let id = id.ok_or(RefusedAnswer::Option)?;
        if id != ALLOW {
            let suggestion = self.suggestion(id).ok_or(RefusedAnswer::Option)?;
            decision["updatedPermissions"] = json!([suggestion]);
        }
        if answer.text.is_some() { Err(RefusedAnswer::Text) } else { Ok(decision) }
    }

    fn suggestion(&self, id: &str) -> Option<&Value> {
        let number: usize = id.strip_prefix(ALWAYS_PREFIX)?.parse().ok()?;
        let suggestion = self.permission_suggestions.get(number.checked_sub(1)?)?;
        change_in_words(suggestion).map(|_| suggestion)
    }

    fn answers(&self, answer: &AnswerRequest) -> Result<Map<String, Value>, RefusedAnswer> {
        let asked: Vec<&str> =
            self.questions().iter().filter_map(|asked| asked["question"].as_str()).collect();
        if let Some(answers) = &answer.answers {
            return answers_to_all(answers, &asked).map(|_| answers.clone());
        }
        let [question] = asked[..] else { return Err(RefusedAnswer::Answers) };
        let text = answer.to_one_question(&self.labels())?;
        Ok(Map::from_iter([(question.to_owned(), json!(text))]))
    }
}

/// What a suggestion changes, in words; `None` for an unknown form, which nobody could judge.
fn change_in_words(suggestion: &Value) -> Option<String> {
    let place = match suggestion["destination"].as_str()? {
        "session" => "until the session ends",
        "localSettings" => "in the project's local settings",
        "projectSettings" => "in the project's settings",
        "userSettings" => "in your settings",
        _ => return None,
    };
    let in_words = |values: &Value, word: fn(&Value) -> Option<String>| -> Option<String> {
        let words: Option<Vec<String>> = values.as_array()?.iter().map(word).collect();
        words.filter(|words| !words.is_empty()).map(|words| words.join(", "))
    };
    let rule = |rule: &Value| {
        let tool = rule["toolName"].as_str()?;
        Some(match rule["ruleContent"].as_str() {
            Some(content) => format!("{tool}({content})"),
            None => tool.to_owned(),
        })
    };
    match suggestion["type"].as_str()? {
        "addRules" if suggestion["behavior"] == "allow" => {
            Some(format!("always allow {} {place}", in_words(&suggestion["rules"], rule)?))
        }
        "addDirectories" => {
            let folder = |it: &Value| it.as_str().map(str::to_owned);
            Some(format!("allow work in {} {place}", in_words(&suggestion["directories"], folder)?))
        }
        "setMode" => Some(format!("switch to mode {} {place}", suggestion["mode"].as_str()?)),
        _ => None,
    }
}

// opencode's words for answers to a permission, which are the ids of the options.
const ONCE: &str = "once";
const ALWAYS: &str = "always";
const REJECT: &str = "reject";

/// What opencode asks: the properties of its event that an answer needs. Its plugin answers through
/// the client's own server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpencodePrompt {
    /// The client's id of the prompt.
    pub id: String,
    #[serde(default)]
    permission: Option<String>,
    #[serde(default)]
    patterns: Vec<String>,
    /// What the option [`ALWAYS`] would allow.
    #[serde(default)]
    always: Vec<String>,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    questions: Vec<Value>,
}

impl OpencodePrompt {
    /// `None` if the event has no id, asks for nothing, or is deeper than what can be shown of it.
    pub fn read(properties: &Value) -> Option<Self> {
        if json_is_deeper(properties, limits::JSON_LEVELS) {
            return None;
        }
        let prompt = Self::deserialize(properties).ok()?;
        (prompt.permission.is_some() || !prompt.questions.is_empty()).then_some(prompt)
    }

    pub fn kind(&self) -> RequestKind {
        if self.permission.is_some() { RequestKind::Permission } else { RequestKind::Question }
    }

    pub fn title(&self) -> String {
        let question = self.questions.first().and_then(|it| it["question"].as_str());
        let command = self.metadata["command"].as_str();
        let pattern = self.patterns.first().map(String::as_str);
        let told = command.or(question).or(pattern).or(self.permission.as_deref());
        one_line(told.unwrap_or_default())
    }

    pub fn tool(&self) -> Value {
        let name = self.permission.as_deref().unwrap_or("question");
        let input = match self.kind() {
            RequestKind::Permission if self.metadata.is_object() => self.metadata.clone(),
            RequestKind::Permission => json!({ "patterns": self.patterns }),
            RequestKind::Question => json!({ "questions": self.questions }),
        };
        json!({ "name": name, "input": input })
    }

    pub fn options(&self) -> Vec<RequestOption> {
        use RequestOptionKind::{AllowAlways, AllowOnce, Deny};
        if self.kind() == RequestKind::Question {
            return choices(self.labels()).chain([option(REJECT, "Do not answer", Deny)]).collect();
        }
        let mut options = vec![option(ONCE, "Yes", AllowOnce)];
        if !self.always.is_empty() {
            let name = format!("Yes, and always allow {}", self.always.join(", "));
            options.push(option(ALWAYS, name, AllowAlways));
        }
        options.push(RequestOption { text: true, ..option(REJECT, "No", Deny) });
        options
    }

    fn labels(&self) -> Vec<&str> {
        labels(&self.questions, Some("multiple"))
    }

    /// What the plugin posts to the client's server: `{reply, message?}`, `{answers}`, or
    /// `{reject: true}` for a question.
    pub fn output(&self, answer: &AnswerRequest) -> Result<Value, RefusedAnswer> {
        let id = answer.option_id.as_deref();
        if self.kind() == RequestKind::Permission {
            if answer.answers.is_some() {
                return Err(RefusedAnswer::Answers);
            }
            return match (id, answer.text.as_deref()) {
                (Some(REJECT), Some(text)) => Ok(json!({ "reply": REJECT, "message": text })),
                (Some(reply @ (ONCE | REJECT)), None) => Ok(json!({ "reply": reply })),
                (Some(ALWAYS), None) if !self.always.is_empty() => Ok(json!({ "reply": ALWAYS })),
                (Some(ONCE | ALWAYS), Some(_)) => Err(RefusedAnswer::Text),
                _ => Err(RefusedAnswer::Option),
            };
        }
        if id == Some(REJECT) {
            return Ok(json!({ "reject": true }));
        }
        Ok(json!({ "answers": self.answers(answer)? }))
    }

    /// The answers to all questions, in their order: a list of texts for each.
    fn answers(&self, answer: &AnswerRequest) -> Result<Vec<Vec<String>>, RefusedAnswer> {
        if let Some(given) = &answer.answers {
            let asked: Vec<_> =
                self.questions.iter().filter_map(|it| it["question"].as_str()).collect();
            return answers_to_all(given, &asked);
        }
        if self.questions.len() != 1 {
            return Err(RefusedAnswer::Answers);
        }
        let text = answer.to_one_question(&self.labels())?;
        Ok(vec![vec![text.to_owned()]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash() -> ClaudePrompt {
        ClaudePrompt::read(&json!({
            "hook_event_name": "PermissionRequest", "tool_name": "Bash",
            "tool_input": { "command": "touch made", "description": "x" },
            "permission_suggestions": [
                { "type": "addRules", "rules": [{ "toolName": "Bash", "ruleContent": "touch:*" }],
                  "behavior": "allow", "destination": "localSettings" },
                { "type": "addDirectories", "directories": ["/home/user/work"],
                  "destination": "session" },
                { "type": "setMode", "mode": "acceptEdits", "destination": "session" },
                { "type": "of a later version", "destination": "session" },
            ],
        }))
        .unwrap()
    }

    fn question(is_multi: bool, more: Option<Value>) -> ClaudePrompt {
        let first = json!({ "question": "Which colour?", "multiSelect": is_multi,
            "options": [{ "label": "Red" }, { "label": "Blue" }] });
        let questions: Vec<_> = [Some(first), more].into_iter().flatten().collect();
        ClaudePrompt::read(&json!({
            "tool_name": "AskUserQuestion", "tool_input": { "questions": questions },
        }))
        .unwrap()
    }

    fn decision(prompt: &ClaudePrompt, answer: &AnswerRequest) -> Result<Value, RefusedAnswer> {
        let output = prompt.output(answer)?;
        assert_eq!(output["hookSpecificOutput"]["hookEventName"], "PermissionRequest");
        Ok(output["hookSpecificOutput"]["decision"].clone())
    }

    fn chosen(id: &str) -> AnswerRequest {
        AnswerRequest { option_id: Some(id.to_owned()), ..AnswerRequest::default() }
    }

    #[test]
    fn options_say_what_they_change() {
        let names: Vec<_> =
            bash().options().into_iter().map(|option| (option.option_id, option.name)).collect();
        let expected = [
            ("allow", "Yes"),
            ("always_1", "Yes, and always allow Bash(touch:*) in the project's local settings"),
            ("always_2", "Yes, and allow work in /home/user/work until the session ends"),
            ("always_3", "Yes, and switch to mode acceptEdits until the session ends"),
            ("deny", "No"),
        ];
        assert_eq!(names, expected.map(|(id, name)| (id.to_owned(), name.to_owned())));
    }

    #[test]
    fn prompt_that_is_too_deep_is_not_read() {
        let payload = |levels: usize| {
            let (open, close) = ("[".repeat(levels), "]".repeat(levels));
            let text = format!(r#"{{"tool_name":"t","tool_input":{{"a":{open}{close}}}}}"#);
            serde_json::from_str::<Value>(&text).unwrap()
        };
        // The payload and its `tool_input` are two levels.
        assert!(ClaudePrompt::read(&payload(limits::JSON_LEVELS - 2)).is_some());
        assert!(ClaudePrompt::read(&payload(limits::JSON_LEVELS - 1)).is_none());
    }

    #[test]
    fn answers_have_the_form_that_the_client_takes() {
        let prompt = bash();
        assert_eq!(decision(&prompt, &chosen("allow")), Ok(json!({ "behavior": "allow" })));
        let always = decision(&prompt, &chosen("always_1")).unwrap();
        assert_eq!(always["updatedPermissions"][0]["rules"][0]["ruleContent"], "touch:*");
        let deny = AnswerRequest { text: Some("use make".to_owned()), ..chosen("deny") };
        let expected = json!({ "behavior": "deny", "message": "use make" });
        assert_eq!(decision(&prompt, &deny), Ok(expected));
        let plan =
            ClaudePrompt::read(&json!({ "tool_name": "ExitPlanMode", "tool_input": {} })).unwrap();
        let expected = json!({ "behavior": "allow", "updatedInput": {} });
        assert_eq!(decision(&plan, &chosen("allow")), Ok(expected));
    }

    #[test]
    fn questions_are_answered_whole() {
        let prompt = question(false, None);
        assert_eq!(prompt.kind(), RequestKind::Question);
        let text = AnswerRequest { text: Some("Green".to_owned()), ..AnswerRequest::default() };
        for (answer, expected) in [(chosen("choice_2"), "Blue"), (text.clone(), "Green")] {
            let decision = decision(&prompt, &answer).unwrap();
            assert_eq!(decision["updatedInput"]["answers"]["Which colour?"], expected);
            assert!(decision["updatedInput"]["questions"].is_array());
        }
        let several = question(true, Some(json!({ "question": "Which size?" })));
        let all = json!({ "Which colour?": ["Red", "Blue"], "Which size?": "XL" });
        let answers =
            AnswerRequest { answers: all.as_object().cloned(), ..AnswerRequest::default() };
        assert_eq!(decision(&several, &answers).unwrap()["updatedInput"]["answers"], all);
        let part = json!({ "Which colour?": "Red" });
        let answers =
            AnswerRequest { answers: part.as_object().cloned(), ..AnswerRequest::default() };
        assert_eq!(decision(&several, &answers), Err(RefusedAnswer::Answers));
        assert_eq!(decision(&several, &text), Err(RefusedAnswer::Answers));
        for nothing in [json!([]), json!(""), json!([" "])] {
            let all = json!({ "Which colour?": "Red", "Which size?": nothing });
            let answers =
                AnswerRequest { answers: all.as_object().cloned(), ..AnswerRequest::default() };
            let refused = RefusedAnswer::Empty("Which size?".to_owned());
            assert_eq!(decision(&several, &answers), Err(refused), "{all}");
        }
    }

    #[test]
    fn answers_that_the_client_would_not_take_are_refused() {
        let prompt = bash();
        for id in ["always_4", "always_0", "always_5", "choice_1", "x"] {
            assert_eq!(decision(&prompt, &chosen(id)), Err(RefusedAnswer::Option), "{id}");
        }
        let text = AnswerRequest { text: Some("x".to_owned()), ..chosen("allow") };
        assert_eq!(decision(&prompt, &text), Err(RefusedAnswer::Text));
        assert_eq!(decision(&prompt, &AnswerRequest::default()), Err(RefusedAnswer::Option));
        assert_eq!(
            decision(&question(false, None), &chosen("choice_3")),
            Err(RefusedAnswer::Option)
        );
        assert_eq!(ClaudePrompt::read(&json!({ "tool_name": " " })), None);
    }

    fn opencode_permission() -> OpencodePrompt {
        OpencodePrompt::read(&json!({
            "id": "per_20d54a638001ja50PpC6b1AEYX", "sessionID": "ses_1", "permission": "bash",
            "patterns": ["touch made"], "metadata": { "command": "touch made" },
            "always": ["touch *"], "tool": { "messageID": "msg_1", "callID": "call_1" },
        }))
        .unwrap()
    }

    fn opencode_question() -> OpencodePrompt {
        OpencodePrompt::read(&json!({
            "id": "que_1", "sessionID": "ses_1", "questions": [{
                "question": "Which colour?", "header": "Colour",
                "options": [{ "label": "Red", "description": "r" }, { "label": "Blue" }],
            }],
        }))
        .unwrap()
    }

    #[test]
    fn a_permission_is_answered_in_the_words_of_the_client() {
        let prompt = opencode_permission();
        assert_eq!(
            (prompt.kind(), prompt.title()),
            (RequestKind::Permission, "touch made".to_owned())
        );
        let names: Vec<_> = prompt.options().into_iter().map(|option| option.name).collect();
        assert_eq!(names, ["Yes", "Yes, and always allow touch *", "No"]);
        assert_eq!(prompt.output(&chosen(ONCE)), Ok(json!({ "reply": "once" })));
        assert_eq!(prompt.output(&chosen(ALWAYS)), Ok(json!({ "reply": "always" })));
        let deny = AnswerRequest { text: Some("use make".to_owned()), ..chosen(REJECT) };
        let expected = json!({ "reply": "reject", "message": "use make" });
        assert_eq!(prompt.output(&deny), Ok(expected));
        let text = AnswerRequest { text: Some("x".to_owned()), ..chosen(ONCE) };
        assert_eq!(prompt.output(&text), Err(RefusedAnswer::Text));
        assert_eq!(prompt.output(&chosen("allow")), Err(RefusedAnswer::Option));
    }

    #[test]
    fn a_question_is_answered_with_a_list_for_each() {
        let prompt = opencode_question();
        assert_eq!(prompt.output(&chosen("choice_2")), Ok(json!({ "answers": [["Blue"]] })));
        let text = AnswerRequest { text: Some("Green".to_owned()), ..AnswerRequest::default() };
        assert_eq!(prompt.output(&text), Ok(json!({ "answers": [["Green"]] })));
        assert_eq!(prompt.output(&chosen(REJECT)), Ok(json!({ "reject": true })));
        assert_eq!(prompt.output(&chosen("choice_3")), Err(RefusedAnswer::Option));
        let all = json!({ "Which colour?": ["Red", "Blue"] });
        let answers =
            AnswerRequest { answers: all.as_object().cloned(), ..AnswerRequest::default() };
        assert_eq!(prompt.output(&answers), Ok(json!({ "answers": [["Red", "Blue"]] })));
        assert_eq!(OpencodePrompt::read(&json!({ "id": "x" })), None);
    }
}
