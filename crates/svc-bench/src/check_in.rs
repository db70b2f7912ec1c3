//! `check-in`: tool calls that the journal counts; the baseline is plain appends. Both are on the
//! disk before the response.

use std::sync::Arc;

use svc_core::service::{Services, Tokens, Tuning, team::ActingSession};
use svc_model::{Caller, Ids, NewEvent, StreamName, SystemClock, limits};

use crate::{
    append_inproc::{self, Append, Ours, STREAMS},
    bench::Bench,
    daemon::DATA_BYTES,
    report::{Figure, Goal},
    stats::{self, Summary},
};

const CALLERS: usize = 64;
/// The goal, as a share of the rate of plain appends.
const SHARE: f64 = 0.7;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let runtime = append_inproc::runtime()?;
    let (store, writer) = append_inproc::open(&runtime, bench, "check-in")?;
    let names: Arc<[StreamName]> =
        (0..STREAMS).map(|number| StreamName::new("bench", number)).collect();
    runtime.block_on(append_inproc::make_streams(&store, &names))?;
    let tokens = Tokens::open_or_make(&bench.sandbox.path("check-in.token"))?;
    let services = Services::new(
        store.clone(),
        Arc::new(SystemClock),
        Ids::random(),
        Tuning::default(),
        tokens,
    );
    let data: Arc<str> = format!("{{\"line\":\"{}\"}}", "x".repeat(DATA_BYTES - 11)).into();
    let event = NewEvent { kind: "frame".into(), data, producer_id: None };
    for (name, sessions) in [("sessions", STREAMS), ("one session", 1)] {
        let (mut ours, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            bench.begin_round(&format!("check-in/{CALLERS} {name}"))?;
            let count = CheckIns { services: services.clone(), sessions };
            ours.push(runtime.block_on(append_inproc::produce(CALLERS, bench.window(), count))?);
            let append = Ours {
                store: store.clone(),
                names: Arc::clone(&names),
                event: event.clone(),
                events: 1,
            };
            beside.push(runtime.block_on(append_inproc::produce(
                CALLERS,
                bench.window(),
                append,
            ))?);
        }
        let summary = Summary::from_rounds(&ours, 1);
        let figure = Figure::summed(format!("check-in/{CALLERS} on {name}"), "calls/s", summary)
            .beside(
                "plain appends",
                Summary::from_rounds(&beside, 1),
                stats::ratio(&ours, &beside),
            );
        bench.add(figure.goal(Goal::ratio(SHARE)));
    }
    drop(services);
    runtime.block_on(writer.close(store))?;
    Ok(())
}

#[derive(Clone)]
struct CheckIns {
    services: Services,
    sessions: usize,
}

impl Append for CheckIns {
    async fn append(&self, stream: usize) -> anyhow::Result<()> {
        let session_id = format!("session-{}", stream % self.sessions);
        let session = ActingSession { session_id, agent_id: String::new() };
        let tool = Some("Bash".to_owned());
        self.services.team.check_in(&Caller::Operator, session, tool, limits::CHECK_IN).await?;
        Ok(())
    }
}
