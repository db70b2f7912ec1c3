//! Asks the host of an agent who it is, gives the agent a text and shows what it does until it is
//! idle again: `cargo run -p svc-client --example talk_to_host ~/.local/share/svc/agents/ag_….sock
//! "run the tests"`. No daemon is needed.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use svc_client::hosts::{HostClient, HostUpdate};
use svc_model::agent::{AgentEventBody, AgentState};
use svc_wire::host_protocol::{SendInput, StopAgent};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("name the socket of a host and give a text".into());
    };
    let is_last = arguments.next().is_some_and(|word| word == "stop");
    talk(socket.into(), text, is_last, &mut io::stdout()).await
}

/// The turn of one text. After the last one the agent is stopped.
async fn talk(
    socket: PathBuf,
    text: String,
    is_last: bool,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let host = HostClient::connect(socket).await?;
    let ping = host.ping().await?;
    writeln!(out, "a host of version {}, which speaks {}", ping.version, ping.protocol_version)?;
    for agent in host.list().await? {
        writeln!(out, "{} is {}", agent.id, agent.state.as_str())?;
    }
    let attached = host.status().await?.host.attached;
    writeln!(out, "{attached} clients follow it")?;

    // Only what follows is of interest.
    let before = host.attach(0).await?.attached().stream_offset;
    let mut feed = host.attach(i64::try_from(before)?).await?;
    let sent = host.send(&SendInput::new(text)).await?;
    writeln!(out, "sent as {}", sent.message_id)?;
    'turn: while let Some(news) = feed.recv().await? {
        // An entry has the text of its deltas.
        let HostUpdate::Events(events) = news else { continue };
        for event in events {
            writeln!(out, "{}", event.line)?;
            if let AgentEventBody::State { state, .. } = event.body()
                && (*state == AgentState::Idle || state.is_final())
            {
                break 'turn;
            }
        }
    }
    if is_last {
        let stopped = host.stop(&StopAgent::default()).await?;
        writeln!(out, "it is {}", stopped.final_state.as_str())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use svc_sys::local_socket;
    use svc_wire::host_protocol::{
        AttachStream, HOST_PROTOCOL, HostReply, HostRequest, HostRequestKind,
    };
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    /// A host that knows one turn.
    async fn host(listener: UnixListener) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    }

    async fn answer(stream: UnixStream) {
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let request: HostRequest = serde_json::from_str(&line).unwrap();
            let mut text = HostReply::success(&request, Some(payload_of(&request))).to_line();
            if request.decode::<AttachStream>().is_ok_and(|attach| attach.offset == 2) {
                text.extend(format!("{}\n{}\n", event(3, "running"), event(4, "idle")).bytes());
            }
            writer.write_all(&text).await.unwrap();
        }
    }

    fn payload_of(request: &HostRequest) -> Value {
        let now = "2026-01-31T12:00:00.000Z";
        let agent = json!({
            "id": "ag_1", "project": "", "state": "idle", "pid": 7, "worktree": "/", "started_at": now, "backend": "claude",
            "instance": "worker", "session_key": "agent:worker:main",
        });
        let version =
            json!({ "version": "9", "protocol_version": HOST_PROTOCOL, "started_at": now });
        let with = |mut document: Value, more: Value| {
            document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            document
        };
        match HostRequestKind::parse(&request.kind).unwrap() {
            HostRequestKind::Ping => with(version, json!({ "uptime": "1s" })),
            HostRequestKind::Status => {
                let host = with(version, json!({ "pid": 6, "socket_path": "/s", "attached": 2 }));
                json!({ "host": host, "agent": agent })
            }
            HostRequestKind::List => json!({ "agents": [agent] }),
            HostRequestKind::Attach => {
                json!({ "agent_id": "ag_1", "stream_offset": 2, "oldest_offset": 1, "epoch": "e" })
            }
            HostRequestKind::Send => json!({ "message_id": "msg_1", "queued": false }),
            HostRequestKind::Stop => {
                json!({ "stopped": true, "graceful": true, "duration": "1s", "final_state": "done" })
            }
            kind => panic!("{kind:?}"),
        }
    }

    fn event(offset: u64, state: &str) -> String {
        format!(
            r#"{{"type":"state","state":"{state}","agent_id":"ag_1","offset":{offset},"timestamp":"2026-01-31T12:00:00.000Z"}}"#
        )
    }

    #[tokio::test]
    async fn turn_is_given_and_followed_and_the_agent_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ag_1.sock");
        let (listener, _file) = local_socket::listen(&socket).unwrap();
        tokio::spawn(host(listener));
        let mut out = Vec::new();
        talk(socket, "run the tests".to_owned(), true, &mut out).await.unwrap();
        let expected = [
            "a host of version 9, which speaks 1.1",
            "ag_1 is idle",
            "2 clients follow it",
            "sent as msg_1",
            &event(3, "running"),
            &event(4, "idle"),
            "it is done",
            "",
        ];
        assert_eq!(String::from_utf8(out).unwrap(), expected.join("\n"));
    }
}
