//! The families of rows, each with its reads and its writes, which are in the family's own file.
//!
//! `store.peers()` has the reads of peers. `tx.peers()` has what a write job may do with them,
//! including reads, which see the job's own writes.

use super::{db::Store, tx::WriteTx};

/// The two types of a family, and the methods that return them.
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
    /// Senders and receivers of messages. See `peer.rs`.
    peers: PeerReads, PeerWrites
}

family! {
    /// Messages and their deliveries. See `message.rs`.
    messages: MessageReads, MessageWrites
}

family! {
    /// Messages that wait for their receiver. See `inbox.rs`.
    inboxes: InboxReads, InboxWrites
}

family! {
    /// Texts in clients' own hands. See `handover.rs`.
    handovers: HandoverReads, HandoverWrites
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
    /// What agents and sessions ask people. See `request.rs`.
    requests: RequestReads, RequestWrites
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
    /// The operator's browsers, and sign-in codes. See `browser.rs`.
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
    /// The daemon's own settings. See `setting.rs`.
    settings: SettingReads, SettingWrites
}

family! {
    /// Received hook calls, and hook answers that no client took. See `hook.rs`.
    hooks: HookWrites of a job
}

family! {
    /// Which items sessions were given. See `seen.rs`.
    seen: SeenReads, SeenWrites
}

family! {
    /// Which given items have helped. See `confirmation.rs`.
    confirmations: ConfirmationWrites of a job
}

family! {
    /// Records of the journal. See `journal.rs`.
    ghaps: GhapReads, GhapWrites
}

family! {
    /// The search index of records. See `search.rs`.
    search: SearchReads, SearchWrites
}

family! {
    /// Clusters of records, and the values drawn from them. See `values.rs`.
    values: ValueReads, ValueWrites
}

family! {
    /// Rates of confirmed predictions. See `calibration.rs`.
    calibration: CalibrationReads of the store
}

family! {
    /// Memories. See `memory.rs`.
    memories: MemoryReads, MemoryWrites
}

family! {
    /// Results of builds and tests. See `outcome.rs`.
    outcomes: OutcomeReads, OutcomeWrites
}

family! {
    /// Sessions and calls of MCP. See `mcp.rs`.
    mcp: McpReads, McpWrites
}

family! {
    /// Machines and daemons. See `machine.rs`.
    machines: MachineReads, MachineWrites
}

family! {
    /// Folders of projects. See `project.rs`.
    projects: ProjectReads, ProjectWrites
}

family! {
    /// Lists, pins, states and processes of sources. See `source.rs`.
    sources: SourceReads, SourceWrites
}

family! {
    /// Streams and their visibility. See `streams.rs`.
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
    /// Maintenance and size of the file. See `maintain.rs`.
    upkeep: Upkeep, UpkeepWrites
}

family! {
    /// Removal of expired rows. See `sweep.rs`.
    sweeps: Sweeps, SweepWrites
}
