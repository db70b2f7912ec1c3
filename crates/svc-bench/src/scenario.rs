//! What can be measured.

use clap::ValueEnum;

use super::{
    agents, append, bench::Bench, calls, fanout, floods, hook, idle, neighbour, peers, search,
    sessions,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Durable appends through the store, beside a bare group commit
    AppendInproc,
    /// Durable check-ins of the journal, beside plain appends
    CheckIn,
    /// Durable appends over HTTP, beside a handler that does nothing
    AppendHttp,
    /// One stream to many subscribers, beside axum's events and bare sockets
    Fanout,
    /// The time from a producer to a hundred subscribers, at a thousand events a second
    FanoutPaced,
    /// Producers and subscribers of one stream together
    Mixed,
    /// A long stream to one reader, beside a bare read
    Replay,
    /// From `exec` to the first answer
    Startup,
    /// Memory of an idle daemon, and of each idle subscriber
    Memory,
    /// How good a search of the journal is, beside plain BM25 and a keyword score
    Retrieval,
    /// Calls of MCP tools, beside a plain handler of JSON
    McpCall,
    /// A call of a child MCP server through the daemon, beside the same on its own pipes
    ChildCall,
    /// What a hook adds to a tool call, beside a program that does nothing
    Hook,
    /// Memory of each silent MCP client
    McpMemory,
    /// From an agent's line to the spool and to a watcher, and what idle hosts cost, beside a bare
    /// pipe
    Agents,
    /// A session's appends while another tries to exhaust what all share, beside a busy core
    Neighbour,
    /// A session's appends beside floods of its daemon, beside the same floods of another daemon
    Floods,
    /// A question from agent to agent and its answer, beside pipes and synced files
    Sessions,
    /// svc with its rows in PostgreSQL, beside svc with a file, and beside that server itself
    PostgresStore,
    /// Appends, beside Redis
    PeersAppend,
    /// Producers and subscribers, beside Redis
    PeersMixed,
    /// A long stream, beside Redis
    PeersReplay,
    /// Calls in sessions, beside another MCP server
    PeersMcp,
}

impl Scenario {
    /// Whether it needs a server that has to be installed.
    pub(crate) fn needs_peers(self) -> bool {
        matches!(
            self,
            Self::PostgresStore | Self::PeersAppend | Self::PeersMixed | Self::PeersReplay
        )
    }

    /// Whether it compares with another server.
    pub(crate) fn is_of_peers(self) -> bool {
        self.needs_peers() || self == Self::PeersMcp
    }

    /// Whether it measures code in this program, and no other program.
    pub(crate) fn is_in_process(self) -> bool {
        matches!(self, Self::AppendInproc | Self::CheckIn | Self::Retrieval)
    }

    pub(crate) fn name(self) -> String {
        let name = self.to_possible_value().map(|value| value.get_name().to_owned());
        name.unwrap_or_default()
    }

    pub(crate) fn run(self, bench: &mut Bench) -> anyhow::Result<()> {
        match self {
            Self::AppendInproc => append::run_inproc(bench),
            Self::CheckIn => append::run_check_in(bench),
            Self::AppendHttp => append::run_http(bench),
            Self::Fanout => fanout::run_fanout(bench),
            Self::FanoutPaced => fanout::run_paced(bench),
            Self::Mixed => fanout::run_mixed(bench),
            Self::Replay => fanout::run_replay(bench),
            Self::Startup => idle::run_startup(bench),
            Self::Memory => idle::run_memory(bench),
            Self::Retrieval => search::run(bench),
            Self::McpCall => calls::run_mcp_call(bench),
            Self::ChildCall => calls::run_child_call(bench),
            Self::Hook => hook::run(bench),
            Self::McpMemory => idle::run_mcp_memory(bench),
            Self::Agents => agents::run(bench),
            Self::Neighbour => neighbour::run(bench),
            Self::Floods => floods::run(bench),
            Self::Sessions => sessions::run(bench),
            Self::PostgresStore => peers::run_postgres_store(bench),
            Self::PeersAppend => peers::run_append(bench),
            Self::PeersMixed => peers::run_mixed(bench),
            Self::PeersReplay => peers::run_replay(bench),
            Self::PeersMcp => peers::run_mcp(bench),
        }
    }
}
