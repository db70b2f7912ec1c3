//! `/v1/doctor`: the findings of `svc doctor`, for clients without a terminal.

use std::time::Duration;

use svc_model::{Caller, READ_ALL};
use tokio::time::timeout;

use super::{
    App, Code, Problem, api::Api, body::Json, doctor_process::DoctorReport, openapi::Operation,
};

/// Deadline for the checks.
const WITHIN: Duration = Duration::from_secs(30);

pub(super) fn routes(api: Api) -> Api {
    let on_doctor = Operation::new("What is wrong with this installation (operator, read_all)");
    api.get("/v1/doctor", on_doctor.answer::<DoctorReport>(200, "What each check found"), examine)
}

async fn examine(app: App, caller: Caller) -> Result<Json<DoctorReport>, Problem> {
    if !caller.has_scope(READ_ALL) {
        let why = "the installation is the operator's to look at, or needs read_all";
        return Err(Problem::new(Code::Forbidden, why));
    }
    let doctor = app.doctor.as_ref();
    let doctor = doctor.ok_or_else(|| Problem::new(Code::NotFound, "there is no svc doctor"))?;
    let failed = |error: &dyn std::fmt::Display| {
        Problem::new(Code::Unavailable, format!("svc doctor gave no answer: {error}"))
    };
    match timeout(WITHIN, doctor.run()).await {
        Ok(findings) => findings.map(Json).map_err(|error| failed(&error)),
        Err(late) => Err(failed(&late)),
    }
}
