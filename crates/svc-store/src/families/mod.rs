//! The families of rows, each with its reads and its writes, which are in the family's own file.
//!
//! `store.peers()` has the reads of peers. `tx.peers()` has what a write job may do with them,
//! including reads, which see the job's own writes.

mod agent;
mod assignment;
pub(crate) mod frames;
mod hook;
mod inbox;
mod journal;
mod machine;
mod maintain;
mod mcp;
mod memory;
mod message;
mod peer;
mod project;
mod request;
mod search;
mod session;
mod streams;
mod task;
mod token;
mod values;

pub use inbox::UndeliveredChoice;

use crate::{store::Store, tx::WriteTx};

/// The types of families, and the methods that return them: reads of the store, writes of a job.
macro_rules! families {
    ($($(#[$note:meta])* $name:ident: $reads:tt, $writes:tt;)+) => {
        $(
            families! { reads $(#[$note])* $name $reads }
            families! { writes $(#[$note])* $name $writes }
        )+
    };
    ($kind:ident $(#[$note:meta])* $name:ident _) => {};
    (reads $(#[$note:meta])* $name:ident $reads:ident) => {
        $(#[$note])*
        #[derive(Debug, Clone, Copy)]
        pub struct $reads<'a> {
            pub(super) store: &'a Store,
        }

        impl Store {
            $(#[$note])*
            pub fn $name(&self) -> $reads<'_> {
                $reads { store: self }
            }
        }
    };
    (writes $(#[$note:meta])* $name:ident $writes:ident) => {
        $(#[$note])*
        #[derive(Debug)]
        pub struct $writes<'a> {
            pub(super) tx: &'a mut WriteTx,
        }

        impl WriteTx {
            $(#[$note])*
            pub fn $name(&mut self) -> $writes<'_> {
                $writes { tx: self }
            }
        }
    };
}

families! {
    /// Senders and receivers of messages. See `peer.rs`.
    peers: PeerReads, PeerWrites;
    /// Messages and their deliveries. See `message.rs`.
    messages: MessageReads, MessageWrites;
    /// Messages that wait for their receiver. See `inbox.rs`.
    inboxes: InboxReads, InboxWrites;
    /// Texts that were handed to clients' own queues. See `inbox.rs`.
    handovers: HandoverReads, HandoverWrites;
    /// Work that was given to participants. See `assignment.rs`.
    assignments: AssignmentReads, AssignmentWrites;
    /// Hosted agents, live and ended. See `agent.rs`.
    agents: AgentReads, AgentWrites;
    /// What agents and sessions ask people. See `request.rs`.
    requests: RequestReads, RequestWrites;
    /// Tasks. See `task.rs`.
    tasks: TaskReads, TaskWrites;
    /// Tokens, and the processes that have them. See `token.rs`.
    tokens: TokenReads, TokenWrites;
    /// The operator's browsers, and sign-in codes. See `token.rs`.
    browsers: BrowserReads, BrowserWrites;
    /// Sessions of clients. See `session.rs`.
    sessions: SessionReads, SessionWrites;
    /// How often sessions called tools. See `session.rs`.
    tool_counts: ToolCountReads, ToolCountWrites;
    /// The daemon's own settings. See `machine.rs`.
    settings: SettingReads, SettingWrites;
    /// Received hook calls, and hook answers that no client took. See `hook.rs`.
    hooks: _, HookWrites;
    /// Which items sessions were given. See `hook.rs`.
    seen: SeenReads, SeenWrites;
    /// Which given items have helped. See `hook.rs`.
    confirmations: _, ConfirmationWrites;
    /// Records of the journal. See `journal.rs`.
    ghaps: GhapReads, GhapWrites;
    /// The search index of records. See `search.rs`.
    search: SearchReads, SearchWrites;
    /// Clusters of records, and the values drawn from them. See `values.rs`.
    values: ValueReads, ValueWrites;
    /// Rates of confirmed predictions. See `values.rs`.
    calibration: CalibrationReads, _;
    /// Memories. See `memory.rs`.
    memories: MemoryReads, MemoryWrites;
    /// Results of builds and tests. See `hook.rs`.
    outcomes: OutcomeReads, OutcomeWrites;
    /// Sessions and calls of MCP. See `mcp.rs`.
    mcp: McpReads, McpWrites;
    /// Machines and daemons. See `machine.rs`.
    machines: MachineReads, MachineWrites;
    /// Folders of projects. See `project.rs`.
    projects: ProjectReads, ProjectWrites;
    /// Lists, pins, states and processes of sources. See `mcp.rs`.
    sources: SourceReads, SourceWrites;
    /// Streams and their visibility. See `streams.rs`.
    streams: StreamReads, StreamWrites;
    /// Events, as values. See `streams.rs`.
    events: EventReads, _;
    /// Events, framed for a socket. See `frames.rs`.
    frames: FrameReads, _;
    /// Maintenance and size of the file. See `maintain.rs`.
    upkeep: Upkeep, UpkeepWrites;
    /// Removal of expired rows. See `maintain.rs`.
    sweeps: Sweeps, _;
}
