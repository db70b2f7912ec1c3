//! Rounds of a stateless client: a tool that stops at a question ends the request with it, and the client sends the
//! request again with the answers and with the state that it carried.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use svc_core::tools::{ClientQuestion, Failure, Output};

use super::{
    super::{
        metrics::RequestOutcome,
        rpc::{AnswerEra, EraResult, ResultType, RpcError, object_or_empty, result_message},
        running::{CallRound, InputRequests},
        seal::{RequestState, RequestStateBinding},
    },
    answer::CallAnswer,
    channel::{CallClient, ClientChannel},
};

/// Members of `InputRequiredResult`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InputRequired {
    #[serde(rename = "inputRequests", serialize_with = "as_input_requests")]
    questions: Vec<ClientQuestion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_state: Option<String>,
}

fn as_input_requests<S: Serializer>(
    questions: &[ClientQuestion],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    InputRequests(questions).serialize(serializer)
}

impl ClientChannel {
    /// Takes over what the client brings along from earlier rounds of the same request.
    pub(crate) fn restore_round(&self, method: &str) -> Result<(), RpcError> {
        if matches!(self.client, CallClient::Legacy(_)) {
            return Ok(());
        }
        let params = &self.conversation.record.params;
        let mut answers: Map<String, Value> = object_or_empty(params, "inputResponses")?;
        // A question whose answer is no object is put again.
        answers.retain(|_, answer| answer.is_object());
        let mut kept = None;
        match params.get("requestState") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                let now = self.server.services.now();
                let principal = self.caller.principal().to_string();
                let state = self.server.seal.open(text, &self.binding(&principal, method), now)?;
                kept = state.kept;
                for (key, answer) in state.answers {
                    answers.entry(key).or_insert(answer);
                }
            }
            Some(_) => {
                return Err(RpcError::invalid_params("params.requestState: must be a string"));
            }
        }
        self.conversation.restore(answers, kept);
        Ok(())
    }

    /// The result that asks the client for more, and has it carry what was answered before.
    pub(crate) fn input_required(&self, method: &str) -> EraResult<InputRequired> {
        let CallRound { questions, answers, kept } = self.conversation.round();
        let request_state = (kept.is_some() || !answers.is_empty()).then(|| {
            let principal = self.caller.principal().to_string();
            let state = RequestState { answers, kept };
            let now = self.server.services.now();
            self.server.seal.close(state, &self.binding(&principal, method), now)
        });
        let members = InputRequired { questions, request_state };
        EraResult::stateless(ResultType::InputRequired, members, None)
    }

    /// The answer of a call whose tool may have stopped at a question.
    pub(crate) fn answer(&self, outcome: Result<Output, Failure>) -> CallAnswer {
        let id = &self.conversation.record.rpc_id;
        match (&self.client, outcome) {
            (CallClient::Legacy(_), outcome) => CallAnswer::of(id, outcome, AnswerEra::Legacy),
            (CallClient::Modern(_), Err(Failure::NeedsInput)) => CallAnswer {
                message: result_message(id, &self.input_required("tools/call")),
                status: 200,
                outcome: RequestOutcome::InputRequired,
            },
            (CallClient::Modern(_), outcome) => CallAnswer::of(id, outcome, AnswerEra::Stateless),
        }
    }

    fn binding<'a>(&'a self, principal: &'a str, method: &'a str) -> RequestStateBinding<'a> {
        let record = &self.conversation.record;
        RequestStateBinding {
            principal,
            session: record.acting_session.as_deref().unwrap_or_default(),
            method,
            name: &record.tool,
            arguments: record.arguments(),
        }
    }
}
