//! A prompt that Claude Code shows its person: read from the input of its `PermissionRequest` hook,
//! and answered by what that hook prints. The dialog stands beside the hook, and the first answer
//! counts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::title::{QUESTIONS, title_of_tool};
use crate::agent::{RequestKind, RequestOption, RequestOptionKind};

/// Id of the option that allows the call once.
const ALLOW: &str = "allow";
/// Id of the option that denies the call.
const DENY: &str = "deny";
/// Ids of options that change what is allowed begin so; the number of the suggestion follows.
const ALWAYS: &str = "always_";
/// Ids of options of a question begin so; the number of the label follows.
const CHOICE: &str = "choice_";
/// What the model is told of a denial without words.
const DENIED: &str = "Permission denied";

/// What Claude Code asks: the part of the hook's input that an answer needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaudePrompt {
    pub tool_name: String,
    #[serde(default)]
    pub tool_input: Map<String, Value>,
    /// Changes of permissions that the client offers, in its own form.
    #[serde(default)]
    permission_suggestions: Vec<Value>,
}

/// An answer to a prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptAnswer<'a> {
    pub option_id: Option<&'a str>,
    /// Words: the reason of a denial, or the answer to a single question.
    pub text: Option<&'a str>,
    /// Answers by question, each a text or a list of texts.
    pub answers: Option<&'a Map<String, Value>>,
}

/// Why an answer cannot be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedAnswer {
    /// There is no such option, or none was chosen.
    Option,
    /// The option takes no words.
    Text,
    /// The answers are not those of all questions.
    Answers,
}

impl ClaudePrompt {
    /// `None` if the input names no tool.
    pub fn read(payload: &Value) -> Option<Self> {
        let prompt = Self::deserialize(payload).ok()?;
        (!prompt.tool_name.trim().is_empty()).then_some(prompt)
    }

    pub fn kind(&self) -> RequestKind {
        if self.is_question() { RequestKind::Question } else { RequestKind::Permission }
    }

    /// What is asked, on one line.
    pub fn title(&self) -> String {
        title_of_tool(&self.tool_name, &Value::Object(self.tool_input.clone()))
    }

    /// The call: `{name, input}`.
    pub fn tool(&self) -> Value {
        json!({ "name": self.tool_name, "input": self.tool_input })
    }

    fn is_question(&self) -> bool {
        QUESTIONS.contains(&self.tool_name.as_str()) && !self.questions().is_empty()
    }

    fn questions(&self) -> &[Value] {
        self.tool_input.get("questions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The labels of the only question; none if there are several, or if it takes several labels.
    fn labels(&self) -> Vec<&str> {
        let [question] = self.questions() else { return Vec::new() };
        if question["multiSelect"] == true {
            return Vec::new();
        }
        let options = question["options"].as_array().map_or(&[][..], Vec::as_slice);
        options.iter().filter_map(|option| option["label"].as_str()).collect()
    }

    pub fn options(&self) -> Vec<RequestOption> {
        let option = |id: String, name: String, kind, text| RequestOption {
            option_id: id,
            name,
            kind,
            text,
        };
        if self.is_question() {
            let labels = self.labels().into_iter().enumerate();
            return labels
                .map(|(number, label)| {
                    let id = format!("{CHOICE}{}", number + 1);
                    option(id, label.to_owned(), RequestOptionKind::Choice, false)
                })
                .chain([option(DENY.into(), "Do not answer".into(), RequestOptionKind::Deny, true)])
                .collect();
        }
        let always = self.permission_suggestions.iter().enumerate();
        let always = always.filter_map(|(number, suggestion)| {
            let name = format!("Yes, and {}", change_in_words(suggestion)?);
            let id = format!("{ALWAYS}{}", number + 1);
            Some(option(id, name, RequestOptionKind::AllowAlways, false))
        });
        [option(ALLOW.into(), "Yes".into(), RequestOptionKind::AllowOnce, false)]
            .into_iter()
            .chain(always)
            .chain([option(DENY.into(), "No".into(), RequestOptionKind::Deny, true)])
            .collect()
    }

    /// What the hook prints for an answer.
    ///
    /// # Errors
    /// If the prompt takes no such answer.
    pub fn output(&self, answer: PromptAnswer<'_>) -> Result<Value, RefusedAnswer> {
        let decision = self.decision(answer)?;
        Ok(json!({ "hookSpecificOutput": {
            "hookEventName": "PermissionRequest",
            "decision": decision,
        } }))
    }

    fn decision(&self, answer: PromptAnswer<'_>) -> Result<Value, RefusedAnswer> {
        let no_text = |decision: Value| match answer.text {
            Some(_) => Err(RefusedAnswer::Text),
            None => Ok(decision),
        };
        let id = answer.option_id;
        if id == Some(DENY) {
            let message = answer.text.unwrap_or(DENIED);
            return Ok(json!({ "behavior": "deny", "message": message }));
        }
        if self.is_question() {
            return Ok(self.answered(self.answers(answer)?));
        }
        if answer.answers.is_some() {
            return Err(RefusedAnswer::Answers);
        }
        match id {
            Some(ALLOW) => no_text(self.allowed()),
            Some(id) => {
                let suggestion = self.suggestion(id).ok_or(RefusedAnswer::Option)?;
                let mut decision = self.allowed();
                decision["updatedPermissions"] = json!([suggestion]);
                no_text(decision)
            }
            None => Err(RefusedAnswer::Option),
        }
    }

    fn suggestion(&self, id: &str) -> Option<&Value> {
        let number: usize = id.strip_prefix(ALWAYS)?.parse().ok()?;
        let suggestion = self.permission_suggestions.get(number.checked_sub(1)?)?;
        change_in_words(suggestion).map(|_| suggestion)
    }

    /// A plan is approved only with an input of its own.
    fn allowed(&self) -> Value {
        if self.tool_name == "ExitPlanMode" {
            return json!({ "behavior": "allow", "updatedInput": {} });
        }
        json!({ "behavior": "allow" })
    }

    fn answered(&self, answers: Map<String, Value>) -> Value {
        let mut input = self.tool_input.clone();
        input.insert("answers".to_owned(), Value::Object(answers));
        json!({ "behavior": "allow", "updatedInput": input })
    }

    /// The answers to all questions, by question.
    fn answers(&self, answer: PromptAnswer<'_>) -> Result<Map<String, Value>, RefusedAnswer> {
        let asked: Vec<&str> =
            self.questions().iter().filter_map(|asked| asked["question"].as_str()).collect();
        if let Some(answers) = answer.answers {
            let is_text = |value: &Value| match value {
                Value::String(_) => true,
                Value::Array(texts) => texts.iter().all(Value::is_string),
                _ => false,
            };
            let is_whole = answers.len() == asked.len()
                && asked.iter().all(|question| answers.get(*question).is_some_and(is_text));
            return is_whole.then(|| answers.clone()).ok_or(RefusedAnswer::Answers);
        }
        let [question] = asked[..] else { return Err(RefusedAnswer::Answers) };
        let text = match (answer.option_id, answer.text) {
            (None, Some(text)) => text,
            (None, None) => return Err(RefusedAnswer::Option),
            (Some(_), Some(_)) => return Err(RefusedAnswer::Text),
            (Some(id), None) => {
                let number = id.strip_prefix(CHOICE).and_then(|number| number.parse().ok());
                let label = number
                    .and_then(|number: usize| self.labels().get(number.checked_sub(1)?).copied());
                label.ok_or(RefusedAnswer::Option)?
            }
        };
        Ok(Map::from_iter([(question.to_owned(), json!(text))]))
    }
}

/// What a suggestion changes, in words; `None` for a form that we do not know, which nobody could
/// judge.
fn change_in_words(suggestion: &Value) -> Option<String> {
    let place = match suggestion["destination"].as_str()? {
        "session" => "until the session ends",
        "localSettings" => "in the project's local settings",
        "projectSettings" => "in the project's settings",
        "userSettings" => "in your settings",
        _ => return None,
    };
    let list = |values: &Value, word: fn(&Value) -> Option<String>| -> Option<String> {
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
            Some(format!("always allow {} {place}", list(&suggestion["rules"], rule)?))
        }
        "addDirectories" => {
            let folders = list(&suggestion["directories"], |it| it.as_str().map(str::to_owned))?;
            Some(format!("allow work in {folders} {place}"))
        }
        "setMode" => Some(format!("switch to mode {} {place}", suggestion["mode"].as_str()?)),
        _ => None,
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

    fn decision(prompt: &ClaudePrompt, answer: PromptAnswer<'_>) -> Result<Value, RefusedAnswer> {
        let output = prompt.output(answer)?;
        assert_eq!(output["hookSpecificOutput"]["hookEventName"], "PermissionRequest");
        Ok(output["hookSpecificOutput"]["decision"].clone())
    }

    fn chosen(id: &str) -> PromptAnswer<'_> {
        PromptAnswer { option_id: Some(id), ..PromptAnswer::default() }
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
    fn answers_have_the_form_that_the_client_takes() {
        let prompt = bash();
        assert_eq!(decision(&prompt, chosen("allow")), Ok(json!({ "behavior": "allow" })));
        let always = decision(&prompt, chosen("always_1")).unwrap();
        assert_eq!(always["updatedPermissions"][0]["rules"][0]["ruleContent"], "touch:*");
        let deny = PromptAnswer { text: Some("use make"), ..chosen("deny") };
        let expected = json!({ "behavior": "deny", "message": "use make" });
        assert_eq!(decision(&prompt, deny), Ok(expected));
        let plan =
            ClaudePrompt::read(&json!({ "tool_name": "ExitPlanMode", "tool_input": {} })).unwrap();
        let expected = json!({ "behavior": "allow", "updatedInput": {} });
        assert_eq!(decision(&plan, chosen("allow")), Ok(expected));
    }

    #[test]
    fn questions_are_answered_whole() {
        let prompt = question(false, None);
        assert_eq!(prompt.kind(), RequestKind::Question);
        let text = PromptAnswer { text: Some("Green"), ..PromptAnswer::default() };
        for (answer, expected) in [(chosen("choice_2"), "Blue"), (text, "Green")] {
            let decision = decision(&prompt, answer).unwrap();
            assert_eq!(decision["updatedInput"]["answers"]["Which colour?"], expected);
            assert!(decision["updatedInput"]["questions"].is_array());
        }
        let several = question(true, Some(json!({ "question": "Which size?" })));
        let all = json!({ "Which colour?": ["Red", "Blue"], "Which size?": "XL" });
        let answers = PromptAnswer { answers: all.as_object(), ..PromptAnswer::default() };
        assert_eq!(decision(&several, answers).unwrap()["updatedInput"]["answers"], all);
        let part = json!({ "Which colour?": "Red" });
        let answers = PromptAnswer { answers: part.as_object(), ..PromptAnswer::default() };
        assert_eq!(decision(&several, answers), Err(RefusedAnswer::Answers));
        assert_eq!(decision(&several, text), Err(RefusedAnswer::Answers));
    }

    #[test]
    fn answers_that_the_client_would_not_take_are_refused() {
        let prompt = bash();
        for id in ["always_4", "always_0", "always_5", "choice_1", "x"] {
            assert_eq!(decision(&prompt, chosen(id)), Err(RefusedAnswer::Option), "{id}");
        }
        let text = PromptAnswer { text: Some("x"), ..chosen("allow") };
        assert_eq!(decision(&prompt, text), Err(RefusedAnswer::Text));
        assert_eq!(decision(&prompt, PromptAnswer::default()), Err(RefusedAnswer::Option));
        assert_eq!(
            decision(&question(false, None), chosen("choice_3")),
            Err(RefusedAnswer::Option)
        );
        assert_eq!(ClaudePrompt::read(&json!({ "tool_name": " " })), None);
    }
}
