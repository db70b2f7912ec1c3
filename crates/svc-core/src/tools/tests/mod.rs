//! A daemon without adapters, for tests of tools; tests over every tool (`every`), and of the tool
//! of hooks (`hooks`).

mod every;
mod hooks;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use svc_model::{Caller, NewTask};
use svc_store::testing::TestStore;

use super::{Call, Catalogue, ErrorType, Failure, Output, ToolError};
use crate::service::{Services, testing};

pub(super) struct World {
    pub(super) test: TestStore,
    pub(super) services: Services,
    pub(super) catalogue: Arc<Catalogue>,
}

impl World {
    pub(super) async fn open() -> Self {
        let test = TestStore::open().await;
        let services = testing::services(&test);
        Self { test, services, catalogue: crate::tools::catalogue() }
    }

    pub(super) async fn with_operator() -> (Self, Call) {
        let world = Self::open().await;
        let call = world.operator(None);
        (world, call)
    }

    /// A daemon, and a call in the session `s` of the project `/nowhere/p`.
    pub(super) async fn with_session() -> (Self, Call) {
        let world = Self::open().await;
        let call = world.begin("s", "/nowhere/p").await;
        (world, call)
    }

    pub(super) fn let_pass(&self, time: std::time::Duration) {
        self.test.clock.advance(time);
    }

    /// A call by the operator, on behalf of `session`.
    pub(super) fn operator(&self, session: Option<&str>) -> Call {
        let call = Call::alone(self.services.clone(), Caller::Operator);
        Call { session: session.map(Arc::from), ..call }
    }

    /// A call with the token of `session`.
    pub(super) fn session(&self, session: &str) -> Call {
        Call::alone(self.services.clone(), testing::session(session, &["none"]))
    }

    /// A call by the operator in a session that works in `cwd`.
    pub(super) async fn begin(&self, session: &str, cwd: &str) -> Call {
        let call = self.operator(Some(session));
        self.call(&call, "start_session", json!({ "cwd": cwd })).await;
        call
    }

    /// Calls a tool. A success must match the tool's schema.
    pub(super) async fn try_call(
        &self,
        call: &Call,
        name: &str,
        arguments: Value,
    ) -> Result<Value, ToolError> {
        let tool = self.catalogue.find(&call.caller, name).expect(name);
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        match tool.call(call.clone(), arguments).await {
            Ok(Output::Object(object)) => {
                let value: Value = serde_json::from_str(object.get()).unwrap();
                let schema = tool.output_schema().expect("it says what it gives");
                if let Err(error) = jsonschema::validate(schema, &value) {
                    panic!("{name} gives what its schema does not say: {error}\n{value}");
                }
                assert!(value.is_object(), "{value}");
                Ok(value)
            }
            Ok(other) => panic!("{other:?}"),
            Err(Failure::Tool(error)) => Err(error),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn call<'a>(
        &'a self,
        call: &'a Call,
        name: &'a str,
        arguments: Value,
    ) -> impl Future<Output = Value> + 'a {
        let at = std::panic::Location::caller();
        async move {
            let given = arguments.clone();
            self.try_call(call, name, arguments)
                .await
                .unwrap_or_else(|error| panic!("{at}: {name} {given}: {error:?}"))
        }
    }

    /// Calls a tool that must fail with this kind of error.
    pub(super) async fn refuse(
        &self,
        call: &Call,
        name: &str,
        arguments: Value,
        kind: ErrorType,
    ) -> ToolError {
        let given = arguments.clone();
        match self.try_call(call, name, arguments).await {
            Ok(value) => panic!("{name} {given} gives {value}"),
            Err(error) => {
                assert_eq!(error.kind, kind, "{name} {given}: {error:?}");
                error
            }
        }
    }

    /// Calls a tool that must find a fault in this argument.
    pub(super) async fn refuse_field(
        &self,
        call: &Call,
        name: &str,
        arguments: Value,
        field: &str,
    ) {
        let error = self.refuse(call, name, arguments, ErrorType::ValidationError).await;
        assert_eq!(error.field.as_deref(), Some(field), "{name}: {error:?}");
    }

    pub(super) async fn task(&self) -> String {
        let made =
            self.services.tasks.create_task(&Caller::Operator, NewTask::default()).await.unwrap();
        made.task.task_id.as_str().to_owned()
    }
}

/// A text member of an object.
#[track_caller]
pub(super) fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_else(|| panic!("{name} in {value}")).to_owned()
}

/// The members called `name` of the objects in a list.
#[track_caller]
pub(super) fn each(value: &Value, name: &str) -> Vec<Value> {
    value.as_array().expect("a list").iter().map(|item| item[name].clone()).collect()
}

pub(super) fn nothing() -> Value {
    Value::Object(Map::new())
}

/// Waits until a condition holds, with a bound.
#[track_caller]
pub(super) fn eventually(condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    let at = std::panic::Location::caller();
    let look = async move {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    async move {
        let bound = std::time::Duration::from_secs(20);
        tokio::time::timeout(bound, look)
            .await
            .unwrap_or_else(|_| panic!("{at}: not so after {bound:?}"));
    }
}
