//! A prompt that opencode shows its person: read from the event that its plugin passes on, and
//! answered by the plugin through the client's own server.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    claude_prompt::{PromptAnswer, RefusedAnswer},
    title::one_line,
};
use crate::agent::{RequestKind, RequestOption, RequestOptionKind};

/// The client's words for its answers to a permission, which are the ids of the options.
const ONCE: &str = "once";
const ALWAYS: &str = "always";
const REJECT: &str = "reject";
/// Ids of options of a question begin so; the number of the label follows.
const CHOICE: &str = "choice_";

/// What opencode asks: the properties of its event that an answer needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpencodePrompt {
    /// The client's id of the prompt.
    pub id: String,
    #[serde(default)]
    permission: Option<String>,
    #[serde(default)]
    patterns: Vec<String>,
    /// What the option that holds from now on would allow.
    #[serde(default)]
    always: Vec<String>,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    questions: Vec<Value>,
}

impl OpencodePrompt {
    /// `None` if the event has no id, or asks for nothing.
    pub fn read(properties: &Value) -> Option<Self> {
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

    /// The call: `{name, input}`.
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
        let option = |id: &str, name: &str, kind, text| RequestOption {
            option_id: id.to_owned(),
            name: name.to_owned(),
            kind,
            text,
        };
        let reject =
            |name| option(REJECT, name, RequestOptionKind::Deny, self.permission.is_some());
        if self.kind() == RequestKind::Question {
            let labels = self.labels().into_iter().enumerate().map(|(number, label)| {
                let id = format!("{CHOICE}{}", number + 1);
                option(&id, label, RequestOptionKind::Choice, false)
            });
            return labels.chain([reject("Do not answer")]).collect();
        }
        let mut options = vec![option(ONCE, "Yes", RequestOptionKind::AllowOnce, false)];
        if !self.always.is_empty() {
            let name = format!("Yes, and always allow {}", self.always.join(", "));
            options.push(option(ALWAYS, &name, RequestOptionKind::AllowAlways, false));
        }
        options.push(reject("No"));
        options
    }

    /// The labels of the only question; none if there are several, or if it takes several labels.
    fn labels(&self) -> Vec<&str> {
        let [question] = &self.questions[..] else { return Vec::new() };
        if question["multiple"] == true {
            return Vec::new();
        }
        let options = question["options"].as_array().map_or(&[][..], Vec::as_slice);
        options.iter().filter_map(|option| option["label"].as_str()).collect()
    }

    /// What the plugin posts to the client's server: `{reply, message?}`, `{answers}`, or
    /// `{reject: true}` for a question.
    ///
    /// # Errors
    /// If the prompt takes no such answer.
    pub fn output(&self, answer: PromptAnswer<'_>) -> Result<Value, RefusedAnswer> {
        let id = answer.option_id;
        if self.kind() == RequestKind::Permission {
            if answer.answers.is_some() {
                return Err(RefusedAnswer::Answers);
            }
            return match (id, answer.text) {
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
    fn answers(&self, answer: PromptAnswer<'_>) -> Result<Vec<Vec<String>>, RefusedAnswer> {
        if let Some(given) = answer.answers {
            let asked: Vec<_> =
                self.questions.iter().filter_map(|it| it["question"].as_str()).collect();
            if given.len() != asked.len() {
                return Err(RefusedAnswer::Answers);
            }
            let texts = |value: &Value| match value {
                Value::String(text) => Some(vec![text.clone()]),
                Value::Array(texts) => {
                    texts.iter().map(|text| text.as_str().map(str::to_owned)).collect()
                }
                _ => None,
            };
            let all: Option<Vec<_>> =
                asked.iter().map(|question| given.get(*question).and_then(texts)).collect();
            return all.ok_or(RefusedAnswer::Answers);
        }
        if self.questions.len() != 1 {
            return Err(RefusedAnswer::Answers);
        }
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
        Ok(vec![vec![text.to_owned()]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission() -> OpencodePrompt {
        OpencodePrompt::read(&json!({
            "id": "per_20d54a638001ja50PpC6b1AEYX", "sessionID": "ses_1", "permission": "bash",
            "patterns": ["touch made"], "metadata": { "command": "touch made" },
            "always": ["touch *"], "tool": { "messageID": "msg_1", "callID": "call_1" },
        }))
        .unwrap()
    }

    fn question() -> OpencodePrompt {
        OpencodePrompt::read(&json!({
            "id": "que_1", "sessionID": "ses_1", "questions": [{
                "question": "Which colour?", "header": "Colour",
                "options": [{ "label": "Red", "description": "r" }, { "label": "Blue" }],
            }],
        }))
        .unwrap()
    }

    fn chosen(id: &str) -> PromptAnswer<'_> {
        PromptAnswer { option_id: Some(id), ..PromptAnswer::default() }
    }

    #[test]
    fn a_permission_is_answered_in_the_words_of_the_client() {
        let prompt = permission();
        assert_eq!(
            (prompt.kind(), prompt.title()),
            (RequestKind::Permission, "touch made".to_owned())
        );
        let names: Vec<_> = prompt.options().into_iter().map(|option| option.name).collect();
        assert_eq!(names, ["Yes", "Yes, and always allow touch *", "No"]);
        assert_eq!(prompt.output(chosen(ONCE)), Ok(json!({ "reply": "once" })));
        assert_eq!(prompt.output(chosen(ALWAYS)), Ok(json!({ "reply": "always" })));
        let deny = PromptAnswer { text: Some("use make"), ..chosen(REJECT) };
        let expected = json!({ "reply": "reject", "message": "use make" });
        assert_eq!(prompt.output(deny), Ok(expected));
        let text = PromptAnswer { text: Some("x"), ..chosen(ONCE) };
        assert_eq!(prompt.output(text), Err(RefusedAnswer::Text));
        assert_eq!(prompt.output(chosen("allow")), Err(RefusedAnswer::Option));
    }

    #[test]
    fn a_question_is_answered_with_a_list_for_each() {
        let prompt = question();
        assert_eq!(prompt.output(chosen("choice_2")), Ok(json!({ "answers": [["Blue"]] })));
        let text = PromptAnswer { text: Some("Green"), ..PromptAnswer::default() };
        assert_eq!(prompt.output(text), Ok(json!({ "answers": [["Green"]] })));
        assert_eq!(prompt.output(chosen(REJECT)), Ok(json!({ "reject": true })));
        assert_eq!(prompt.output(chosen("choice_3")), Err(RefusedAnswer::Option));
        let all = json!({ "Which colour?": ["Red", "Blue"] });
        let answers = PromptAnswer { answers: all.as_object(), ..PromptAnswer::default() };
        assert_eq!(prompt.output(answers), Ok(json!({ "answers": [["Red", "Blue"]] })));
        assert_eq!(OpencodePrompt::read(&json!({ "id": "x" })), None);
    }
}
