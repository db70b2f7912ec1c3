//! `mcp-call`: calls of read-only tools; the baseline is an axum handler that reads JSON and
//! responds with as many bytes.

use anyhow::Context as _;
use serde_json::{Value, json};
use svc_wire::mcp::{self, Revision, meta};

use crate::{
    append_http::slice,
    bench::Bench,
    daemon::Daemon,
    load::Protocol,
    report::{Figure, Goal},
    server::{Kind, Server},
    stats::{self, Slice, Summary},
    target::Target,
    wire,
};

/// Peers in a list of them.
const PEERS: usize = 5;
/// Connections for the figure with a goal, and for those without.
const CONNECTIONS: usize = 16;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "mcp-call")?;
    for number in 0..PEERS {
        let peer = json!({
            "display_name": format!("peer {number}"), "backend": "bench", "path": format!("/work/{number}"),
        });
        daemon.target.call("POST", "/v1/peers/register", &peer.to_string())?;
    }
    let tools = [
        ("peer_list", json!({})),
        ("TaskGet", json!({ "task_id": daemon.make_task()? })),
        ("ToolSearch", json!({ "query": "send a message", "detail": "name" })),
    ];
    let levels: &[usize] = if bench.quick { &[1, CONNECTIONS] } else { &[1, CONNECTIONS, 64] };
    for (tool, arguments) in &tools {
        let call = Call::new(&daemon, tool, arguments);
        let request = call.bare();
        let plain = call.plain(bench, &request)?;
        for connections in levels.iter().copied() {
            let name = format!("mcp-call/{tool}/{connections}");
            let figure = compare(bench, &name, connections, (&daemon, &request), &plain)?;
            bench.add(figure.goal_if(connections == CONNECTIONS, Goal::ratio(0.6)));
        }
    }
    // The same in the other eras, without a goal.
    let (tool, arguments) = &tools[0];
    let call = Call::new(&daemon, tool, arguments);
    for (era, request) in [("legacy", call.legacy()?), ("modern", call.modern())] {
        let plain = call.plain(bench, &request)?;
        let name = format!("mcp-call/{tool} {era}/{CONNECTIONS}");
        let figure = compare(bench, &name, CONNECTIONS, (&daemon, &request), &plain)?;
        bench.add(figure);
    }
    daemon.process.stop()
}

fn compare(
    bench: &mut Bench,
    name: &str,
    connections: usize,
    (daemon, request): (&Daemon, &[u8]),
    (plain, plain_request): &(Server, Vec<u8>),
) -> anyhow::Result<Figure> {
    let (mut ours, mut beside): (Vec<Slice>, Vec<Slice>) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        bench.begin_round(name)?;
        for (slices, address, process, request) in [
            (&mut ours, daemon.target.address, &daemon.process, request),
            (&mut beside, plain.target.address, &plain.process, plain_request),
        ] {
            slices.push(slice(bench.window_of, address, process, connections, |_| {
                (Protocol::HTTP, vec![request.to_vec()])
            })?);
        }
    }
    Ok(Figure::summed(name, "calls/s", Summary::from_rounds(&ours, 1)).beside(
        "plain JSON handler",
        Summary::from_rounds(&beside, 1),
        stats::ratio(&ours, &beside),
    ))
}

/// A call as a request of each era.
struct Call<'a> {
    daemon: &'a Daemon,
    tool: &'a str,
    params: Value,
}

impl<'a> Call<'a> {
    fn new(daemon: &'a Daemon, tool: &'a str, arguments: &Value) -> Self {
        Self { daemon, tool, params: json!({ "name": tool, "arguments": arguments }) }
    }

    fn body(&self) -> String {
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": self.params })
            .to_string()
    }

    fn bare(&self) -> Vec<u8> {
        self.daemon.target.request("POST", "/mcp", &self.body())
    }

    fn legacy(&self) -> anyhow::Result<Vec<u8>> {
        let session = open_session(&self.daemon.target)?;
        Ok(self.daemon.target.request_with("POST", "/mcp", &in_session(&session), &self.body()))
    }

    fn modern(&self) -> Vec<u8> {
        let version = Revision::V2026_07_28.as_str();
        let mut params = self.params.clone();
        params["_meta"] = json!({ meta::PROTOCOL_VERSION: version, meta::CLIENT_CAPABILITIES: {} });
        let headers =
            [(mcp::PROTOCOL_VERSION, version), (mcp::METHOD, "tools/call"), (mcp::NAME, self.tool)];
        let modern = Self { params, ..*self };
        self.daemon.target.request_with("POST", "/mcp", &headers, &modern.body())
    }

    /// A plain handler that responds with as many bytes as this request gets, and the same request
    /// to it.
    fn plain(&self, bench: &Bench, request: &[u8]) -> anyhow::Result<(Server, Vec<u8>)> {
        let answer = self.daemon.target.ask(request)?;
        let body = wire::body(&answer);
        let said: Value = serde_json::from_slice(body)?;
        let well =
            said["result"]["structuredContent"].is_object() && said["result"]["isError"].is_null();
        anyhow::ensure!(well, "{} does not answer as it should: {said}", self.tool);
        let plain = Server::start(&bench.sandbox, Kind::Json { bytes: body.len() })?;
        let request = plain.target.request("POST", "/mcp", &self.body());
        Ok((plain, request))
    }
}

/// Opens a session of the last revision with sessions.
pub(crate) fn open_session(target: &Target) -> anyhow::Result<String> {
    let session = session_of(&target.ask(&initialize(target))?)?;
    let body = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    target.ask(&target.request_with("POST", "/mcp", &in_session(&session), &body))?;
    Ok(session)
}

/// The headers of a client in a session.
pub(crate) fn in_session(session: &str) -> [(&str, &str); 2] {
    [ACCEPT, (mcp::SESSION_ID, session)]
}

const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");

/// The request that opens a session.
pub(crate) fn initialize(target: &Target) -> Vec<u8> {
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": Revision::V2025_11_25.as_str(),
        "capabilities": { "elicitation": {}, "roots": { "listChanged": true } },
        "clientInfo": { "name": "bench", "version": "1.0.0" },
    }});
    target.request_with("POST", "/mcp", &[ACCEPT], &body.to_string())
}

/// The session that it opened.
pub(crate) fn session_of(answer: &[u8]) -> anyhow::Result<String> {
    let id = wire::header(answer, mcp::SESSION_ID).context("a session has an id")?;
    Ok(id.to_owned())
}
