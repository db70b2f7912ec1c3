//! What is kept, one family of rows after the other. What there is to read and to write of one
//! stands in its file.
//!
//! `store.peers()` has the reads of peers, `tx.peers()` what a write job does with them: reads too,
//! of what the job has written already.

use super::{db::Store, tx::WriteTx};

/// The two types of a family, and where they are got.
macro_rules! family {
    ($(#[$note:meta])* $name:ident: $reads:ident, $writes:ident) => {
        family! { $(#[$note])* $name: $reads of the store }
        family! { $(#[$note])* $name: $writes of a job }
    };
    ($(#[$note:meta])* $name:ident: $reads:ident of the store) => {
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
    ($(#[$note:meta])* $name:ident: $writes:ident of a job) => {
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

family! {
    /// Who sends and gets messages. See `peer.rs`.
    peers: PeerReads, PeerWrites
}

family! {
    /// Messages, and how each was delivered. See `message.rs`.
    messages: MessageReads, MessageWrites
}

family! {
    /// Messages that wait for their receiver. See `inbox.rs`.
    inboxes: InboxReads, InboxWrites
}

family! {
    /// Work that somebody was given. See `assignment.rs`.
    assignments: AssignmentReads, AssignmentWrites
}

family! {
    /// Hosted agents, live and ended. See `agent.rs`.
    agents: AgentReads, AgentWrites
}

family! {
    /// What agents ask people. See `agent_request.rs`.
    agent_requests: AgentRequestReads, AgentRequestWrites
}

family! {
    /// Tasks. See `task.rs`.
    tasks: TaskReads, TaskWrites
}

family! {
    /// Tokens, and the processes that have them. See `token.rs`.
    tokens: TokenReads, TokenWrites
}

family! {
    /// Browsers of the operator, and the codes that let them in. See `browser.rs`.
    browsers: BrowserReads, BrowserWrites
}

family! {
    /// Sessions of clients. See `session.rs`.
    sessions: SessionReads, SessionWrites
}

family! {
    /// How often sessions called tools. See `count.rs`.
    tool_counts: ToolCountReads, ToolCountWrites
}

family! {
    /// What the daemon remembers of itself. See `setting.rs`.
    settings: SettingReads, SettingWrites
}

family! {
    /// Calls of hooks that came, and those whose answers nobody saw. See `hook.rs`.
    hooks: HookWrites of a job
}

family! {
    /// What sessions were given. See `seen.rs`.
    seen: SeenReads, SeenWrites
}

family! {
    /// Which of what a session was given has helped. See `confirmation.rs`.
    confirmations: ConfirmationWrites of a job
}

family! {
    /// Records of the journal. See `journal.rs`.
    ghaps: GhapReads, GhapWrites
}

family! {
    /// The words of records. See `search.rs`.
    search: SearchReads, SearchWrites
}

family! {
    /// Clusters of records, and the values that are made of them. See `values.rs`.
    values: ValueReads, ValueWrites
}

family! {
    /// How often records were right. See `calibration.rs`.
    calibration: CalibrationReads of the store
}

family! {
    /// Memories. See `memory.rs`.
    memories: MemoryReads, MemoryWrites
}

family! {
    /// What came of builds and tests. See `outcome.rs`.
    outcomes: OutcomeReads, OutcomeWrites
}

family! {
    /// Sessions and calls of MCP. See `mcp.rs`.
    mcp: McpReads, McpWrites
}

family! {
    /// What is kept of sources of tools. See `source.rs`.
    sources: SourceReads, SourceWrites
}

family! {
    /// Streams, and who may read them. See `streams.rs`.
    streams: StreamReads, StreamWrites
}

family! {
    /// Events, as values. See `replay.rs`.
    events: EventReads of the store
}

family! {
    /// Events, framed for a socket. See `frames.rs`.
    frames: FrameReads of the store
}

family! {
    /// The file in shape, and how much there is in it. See `maintain.rs`.
    upkeep: Upkeep, UpkeepWrites
}

family! {
    /// What is removed after a time. See `sweep.rs`.
    sweeps: Sweeps, SweepWrites
}
