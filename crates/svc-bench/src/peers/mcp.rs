//! Another MCP server: calls of a read-only tool, each connection in a session of its own. The
//! comparison is fair if that server stores its sessions in a database, too; `cargo bench --bench
//! mcp` starts one that does.

use serde_json::{Value, json};

use crate::{
    bench::{Bench, WindowOf},
    daemon::Daemon,
    load::{self, Load, Protocol},
    mcp_call::{in_session, open_session},
    report::{Figure, Goal},
    stats::{self, Slice, Summary, Window},
    target::Target,
};

/// Connections, each with a session.
const CONNECTIONS: usize = 16;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(address) = bench.mcp_peer else { return Ok(()) };
    let daemon = Daemon::start(&bench.sandbox, "peers-mcp")?;
    let task = json!({ "task_id": daemon.make_task()? });
    let peer = Target { address, token: None };
    let echo = in_sessions(&peer, "echo", &json!({}))?;
    for (tool, arguments) in
        [("TaskGet", task), ("ToolSearch", json!({ "query": "send", "detail": "name" }))]
    {
        let name = format!("peers-mcp/{tool}/{CONNECTIONS}");
        let requests = in_sessions(&daemon.target, tool, &arguments)?;
        let (mut ours, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            bench.begin_round(&name)?;
            ours.push(slice(bench.window_of, &daemon.target, &requests)?);
            beside.push(slice(bench.window_of, &peer, &echo)?);
        }
        bench.add(
            Figure::summed(name, "calls/s", Summary::from_rounds(&ours, 1))
                .beside("its echo", Summary::from_rounds(&beside, 1), stats::ratio(&ours, &beside))
                .goal(Goal::ratio(2.0)),
        );
    }
    daemon.process.stop()
}

/// A request for each connection, in a session that it opens.
fn in_sessions(target: &Target, tool: &str, arguments: &Value) -> anyhow::Result<Vec<Vec<u8>>> {
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": tool, "arguments": arguments },
    });
    let one = || {
        let session = open_session(target)?;
        Ok(target.request_with("POST", "/mcp", &in_session(&session), &body.to_string()))
    };
    (0..CONNECTIONS).map(|_| one()).collect()
}

fn slice(
    (warm, measure): WindowOf,
    target: &Target,
    requests: &[Vec<u8>],
) -> anyhow::Result<Slice> {
    load::runtime()?.block_on(async {
        let speech = |number: usize| (Protocol::HTTP, vec![requests[number].clone()]);
        let mut load = Load::open(target.address, requests.len(), speech).await?;
        load.run(Window::after(warm, measure)).await
    })
}
