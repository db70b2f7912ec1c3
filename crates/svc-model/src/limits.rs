//! Every bound in the system, one constant each, with its reason.

use std::time::Duration;

/// Largest body of a `/v1` request, in bytes. A bulk of events goes in several requests.
pub const V1_BODY_BYTES: usize = 1024 * 1024;
/// Largest body of any other request, in bytes.
pub const BODY_BYTES: usize = 4 * 1024 * 1024;
/// Largest body of a request that shows no credential, in bytes: a code, or a question of sixty
/// digits.
pub const OPEN_BODY_BYTES: usize = 64 * 1024;
/// What the values of one body may take in memory, in bytes: a text made for that takes eighty
/// times its length.
pub const JSON_WEIGHT_BYTES: usize = 64 * 1024 * 1024;
/// A body up to this length is read into values by the thread that answers: it takes less time than
/// a change of threads is worth.
pub const BODY_AT_ONCE_BYTES: usize = 64 * 1024;
/// A body up to this length is not weighed.
pub const JSON_UNWEIGHED_BYTES: usize = 64 * 1024;
/// Longest `params` of `initialize`, in bytes: a client says its name and what it can do.
pub const MCP_INTRODUCTION_BYTES: usize = 64 * 1024;
/// Bytes of one capability that are kept. Of a larger one it is kept that the client has it.
pub const MCP_CAPABILITY_BYTES: usize = 1024;
/// Characters of a client's name, title and version that are kept.
pub const MCP_CLIENT_NAME_CHARS: usize = 200;
/// Characters that a server behind the daemon is told of a client's reason to cancel a call.
pub const CANCEL_REASON_CHARS: usize = 1000;
/// Calls of servers that go on while clients without sessions are asked, those of all callers.
/// `budget.requests` bounds each caller's.
pub const SUSPENDED_CALLS: usize = 1000;
/// A file that names servers and nothing else: a project's, or a plugin's. Others may have written
/// it.
pub const SOURCE_FILE_BYTES: u64 = 256 * 1024;
/// Servers that one document names. One that names more counts for nothing.
pub const SOURCE_FILE_SERVERS: usize = 256;
/// Error output of one server that is kept in a minute, with what a row costs beside its text. The
/// rest is counted.
pub const SOURCE_STDERR_BYTES: usize = 64 * 1024;
/// Messages of a server in one second that nobody has asked for. Beyond that its output waits for
/// the next second.
pub const SOURCE_MESSAGES: u32 = 1000;
/// Longest pause between two fetches of a server's lists while they go on changing.
pub const SOURCE_REFETCH_PAUSE: Duration = Duration::from_secs(8);
/// How long a body may stall between two pieces: of a request before it is given up (408), of an
/// answer before its reader is cut off. A stream that has nothing to send does not stall.
pub const BODY_STALL: Duration = Duration::from_secs(30);
/// How long the head of a request may take.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that a connection reads ahead, and the longest head of a request; the same of an answer
/// that waits to be written.
pub const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// What the system keeps of an answer that its reader does not take, in bytes.
pub const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// A piece of an answer up to this length is not counted while it waits to be written: a connection
/// has few of them.
pub const UNCOUNTED_BYTES: usize = 4 * 1024;
/// Connections over TCP that wait for a client which has shown no good credential. One more closes
/// the longest idle.
pub const NEWCOMERS: usize = 64;
/// Descriptors that connections over TCP leave to the Unix socket, to files and to processes, or a
/// quarter of them if that is more.
pub const RESERVED_DESCRIPTORS: usize = 96;
/// Connections over TCP that there may be however few descriptors there are.
pub const LEAST_CONNECTIONS: usize = 16;
/// How long a browser keeps the answer to a preflight.
pub const PREFLIGHT_AGE: Duration = Duration::from_mins(10);
/// Silence after which an event stream gets a comment. Proxies and clients give up on silence of a
/// minute.
pub const SSE_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What `retry:` tells a browser, in milliseconds.
pub const SSE_RETRY_MS: u32 = 1000;
/// Grace for requests in flight after the first signal.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Rows in a page when the caller does not say.
pub const PAGE_DEFAULT: u32 = 50;
/// Most rows in a page.
pub const PAGE_MAX: u32 = 500;

/// Longest id that is looked up, in bytes. Ours have 31.
pub const ID_BYTES: usize = 128;
/// Longest name, path, key or other short text of a caller, in bytes.
pub const SHORT_TEXT_BYTES: usize = 4096;
/// Most entries in a metadata map.
pub const METADATA_ENTRIES: usize = 64;
/// Most events in one request, and most rows in one statement of the log.
pub const EVENTS_PER_REQUEST: usize = 1000;
/// Longest text of a message, in bytes. A request to `/v1` can hold no more.
pub const MESSAGE_BYTES: usize = V1_BODY_BYTES;
/// Characters of a text in a list of messages. The whole is shown with its message.
pub const LISTED_TEXT_CHARS: u32 = 4000;
/// Weeks over which verdicts on records are counted.
pub const VERDICT_WEEKS: u32 = 104;
/// Longest body of a reply into a task's stream, in bytes: it is read by a model.
pub const REPLY_BYTES: usize = 256 * 1024;
/// Longest result of a task, in bytes. Its stream has the rest.
pub const TASK_RESULT_BYTES: usize = 256 * 1024;
/// Most bytes that a caller gets who waits for what an agent says.
pub const TASK_CONTENT_BYTES: usize = 5 * 1024 * 1024;
/// Characters of a result that the one who asked for it is told.
pub const TOLD_RESULT_CHARS: usize = 2_000;
/// Most peers of the operator's that are told of a request.
pub const TOLD_PEERS: u32 = 32;
/// Most lines of output that come with a task.
pub const TASK_FRAMES_MAX: u32 = 500;
/// Most bytes of output that come with a task, unless a single line has more: a model reads them.
pub const TASK_FRAMES_BYTES: usize = 256 * 1024;
/// Most tasks that one call waits for.
pub const WATCHED_TASKS: usize = 64;
/// How long a call may wait for a task.
pub const TASK_WAIT: Duration = Duration::from_hours(1);
/// How long a call may wait for an event.
pub const EVENTS_WAIT: Duration = Duration::from_mins(1);
/// Longest producer id of an event, in bytes.
pub const PRODUCER_ID_BYTES: usize = 128;

/// Numbers behind such a name.
pub const PEER_NAMES: u32 = 1000;
/// A peer that was not heard of for this long is offline.
pub const PEER_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a reader has to acknowledge what it took from an inbox before it comes again.
pub const LEASE: Duration = Duration::from_mins(1);
/// A turn of which no hook tells for this long, while no call of a tool is open, is over.
pub const TURN_SILENCE: Duration = Duration::from_mins(10);
/// How often clients' own records of their sessions, and what hooks left in their spool, are looked
/// at.
pub const RECORDS_LOOK: Duration = Duration::from_millis(400);
/// Time after the end of a turn in which a late hook may still report its last words. Then the
/// questions of that turn fail.
pub const TURN_WORDS: Duration = Duration::from_secs(3);
/// A client's record that is older than its last event counts when it still says the same after so
/// long.
pub const RECORD_GRACE: Duration = Duration::from_secs(1);
/// The end of a client's record of a conversation that is read.
pub const RECORD_TAIL_BYTES: u64 = 256 * 1024;
/// A call of a tool that was begun is open for so long at most: its end may have been lost.
pub const OPEN_CALL: Duration = Duration::from_hours(12);
/// Open calls of tools that are remembered of a session. One more takes the place of the oldest.
pub const OPEN_CALLS: usize = 64;
/// A process of several sessions keeps one of them for so long after it was last heard of: nothing
/// tells that its terminal was closed.
pub const SHARED_PROCESS_SESSION: Duration = Duration::from_hours(12);
/// Characters of what a session asks a person.
pub const WAITING_TITLE_CHARS: usize = 300;
/// Messages that may wait in one inbox. One more is refused, none is dropped.
pub const INBOX_MAX: u32 = 10_000;
/// How often the liveness of processes (a peer's `pid`, a task's runner) is looked at.
pub const PID_CHECK: Duration = Duration::from_secs(5);
/// Turns of a session that messages of one sender, other than the operator, begin within
/// [`WAKES_WINDOW`]. Later messages wait for a turn that somebody else begins.
pub const WAKES: i64 = 20;
/// See [`WAKES`].
pub const WAKES_WINDOW: Duration = Duration::from_hours(1);
/// Messages that one session may send to another within [`SESSION_SENDS_WINDOW`].
pub const SESSION_SENDS: u32 = 20;
/// See [`SESSION_SENDS`].
pub const SESSION_SENDS_WINDOW: Duration = Duration::from_mins(1);
/// Longest message of one session to another, in bytes.
pub const SESSION_MESSAGE_BYTES: usize = 64 * 1024;
/// How long a send waits for its reply when the caller does not say.
pub const SESSION_WAIT: Duration = Duration::from_secs(30);
/// Most sessions in a list.
pub const SESSIONS_MAX: u32 = 200;
/// Bytes of one answer with a session's history, and characters of one text in it.
pub const SESSION_HISTORY_BYTES: usize = 80 * 1024;
/// See [`SESSION_HISTORY_BYTES`].
pub const SESSION_HISTORY_CHARS: usize = 4_000;
/// How deep agents may start agents, and how many live ones one session may have started.
pub const SPAWN_DEPTH: u32 = 3;
/// See [`SPAWN_DEPTH`].
pub const SPAWN_CHILDREN: u64 = 5;
/// Messages that one look for an agent's mail takes beyond those that its host has.
pub const AGENT_MAIL: u32 = 64;
/// Messages that an agent's host has at a time. Its queue holds 1,000 inputs; the rest is for
/// prompts of tasks.
pub const HOST_MAIL: u32 = 900;
/// A task whose runner's process is gone gets its terminal event after this much silence: a runner
/// that ended well is still sending its last lines.
pub const RUNNER_GRACE: Duration = Duration::from_mins(1);
/// A task that nothing was heard of for this long is expired. Nothing stays active for ever.
pub const TASK_SILENCE: Duration = Duration::from_hours(24);

/// How often messages that nobody took, and tasks that nobody began, are looked for: they are days
/// old.
pub const EXPIRY_LOOK: Duration = Duration::from_hours(1);

/// How long a session token lives when its maker does not say.
pub const TOKEN_TTL: Duration = Duration::from_hours(12);
/// The longest life of a session token.
pub const TOKEN_TTL_MAX: Duration = Duration::from_hours(720);
/// How exact a token's last use is recorded: a write for each request would cost more than the
/// request.
pub const TOKEN_USE_RESOLUTION: Duration = Duration::from_mins(1);

/// How long a code of `svc open` may be used.
pub const LOGIN_CODE_TTL: Duration = Duration::from_mins(1);
/// How long the row of a code is kept, to tell a used or an old code from a wrong one.
pub const LOGIN_CODE_KEPT: Duration = Duration::from_hours(24);
/// How long a browser stays signed in.
pub const BROWSER_TTL: Duration = Duration::from_hours(12);
/// How long the row of a browser is kept after its end.
pub const BROWSER_KEPT: Duration = Duration::from_hours(720);

/// How long a token that was good is taken for good without a look at its row: so late at most does
/// a daemon notice that another one on the same database took it back.
pub const TOKEN_CACHE: Duration = Duration::from_secs(1);
/// How long the token of a client's process lives. It ends with the process; a client that lives
/// longer trades again.
pub const PROCESS_TOKEN_TTL: Duration = Duration::from_hours(168);
/// Tokens of a client's process that one process of ours bears. One more replaces the oldest of
/// these.
pub const BEARER_TOKENS: u32 = 4;
/// How long the tokens of a process that is gone are kept: what it owned is still told from what
/// another owns.
pub const GONE_PROCESSES_KEPT: Duration = Duration::from_hours(720);
/// How long the id of a session that is over stays its principal's.
pub const SESSION_KEY_KEPT: Duration = Duration::from_hours(720);
/// Sessions whose secrets one job of the sweep removes.
pub const SECRETS_PER_JOB: u32 = 200;
/// Processes between a client and the command that it started.
pub const PROCESS_DEPTH: usize = 32;
/// Processes that one round of the sweep reads at a time, and tokens that one write job takes back.
pub const PROCESSES_PER_PAGE: u32 = 200;

/// Copies of a broadcast that one write job stores: six rows each, with states and event.
pub const COPIES_PER_JOB: u32 = 5;
/// Rows that one write job of a sweep removes or changes.
pub const SWEPT_ROWS_PER_JOB: u32 = 500;
/// Messages to a removed peer that one write job ends: three rows each, with state and event.
pub const ENDED_MESSAGES_PER_JOB: u32 = 100;
/// Write jobs that share one commit at most. Bounds the time that the first of them waits.
pub const JOBS_PER_COMMIT: usize = 512;
/// Write jobs with statements of their own that share one commit at most: such a job may change a
/// thousand rows.
pub const RUNS_PER_COMMIT: usize = 64;
/// Time that jobs may work in one commit: after one that took longer, the next takes fewer of them.
pub const COMMIT_WORK: Duration = Duration::from_millis(2);
/// Bytes of appended events after which a commit takes no more jobs.
pub const COMMIT_BYTES: usize = 2 * 1024 * 1024;
/// Write jobs of one session that may queue before its further writes wait. Those of others do not.
pub const WRITE_LANE: usize = 256;
/// Write jobs of the operator and of the daemon itself that may queue before callers wait to hand
/// theirs over.
pub const WRITE_QUEUE: usize = 4096;
/// Streams whose head the writer keeps in memory. All are forgotten when there are more: each comes
/// back with one look-up.
pub const STREAMS_CACHED: usize = 65_536;
/// Read connections.
pub const READERS: u32 = 4;
/// How long the store waits for a lock that another process holds, such as a backup or a database
/// shell.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// What the write-ahead log is cut back to after a checkpoint, in bytes.
pub const WAL_BYTES: u64 = 64 * 1024 * 1024;
/// Size of the write-ahead log at which maintenance empties it, in bytes.
pub const WAL_TRUNCATE_BYTES: u64 = 32 * 1024 * 1024;
/// How often maintenance looks at the write-ahead log and at retention.
pub const MAINTENANCE: Duration = Duration::from_mins(1);
/// Segments of a full-text index above which maintenance merges them: a search reads each of them.
pub const INDEX_PIECES: i64 = 4;
/// Pages of an index that one write job puts together. Bounds how long it holds up other writers.
pub const INDEX_MERGE_PAGES: i64 = 64;
/// Such jobs in one round of maintenance, for each index. The next round goes on.
pub const INDEX_MERGES: u32 = 16;
/// Events that retention removes in one write job. Bounds how long it holds up other writers.
pub const TRIM_BATCH: usize = 1000;
/// Bytes of rows that it removes in one: every page of a large row is touched.
pub const TRIM_BYTES: u64 = 2 * 1024 * 1024;
/// What the row of an event takes beside its texts, about, in bytes: its numbers, and those in two
/// indexes.
pub const EVENT_ROW_BYTES: u64 = 40;

/// Bytes of event data after which a page of events ends, however many were asked for. One event
/// goes alone.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// The same for an agent, which has to read them.
pub const AGENT_PAGE_BYTES: usize = 128 * 1024;
/// Bytes of results of one kind of read that are kept for as long as nothing is written.
pub const READS_BYTES: usize = 1024 * 1024;

/// Bytes of text after which a page of a replay ends. One event goes alone, whatever its size.
pub const REPLAY_BYTES: usize = 64 * 1024;
/// Pages of a replay that are read ahead of the one that is on its way to the client.
pub const REPLAY_AHEAD: usize = 3;
/// Pages that a reader of one stream reads with one statement: then other readers get the thread
/// and the connection, and the write-ahead log may be cut.
pub const REPLAY_RUN: usize = 32;
/// Page cache of a connection for replays, in KiB: it reads each page of the file once.
pub const REPLAY_CACHE_KIB: i64 = 256;
/// Events in one page where they are read one by one: with a filter, or by a program within the
/// daemon.
pub const REPLAY_ROWS: u32 = 256;
/// Positions that one page of a feed over several streams looks at.
pub const SCAN_POSITIONS: i64 = 8192;
/// Bytes of frames that a stream's tail keeps in memory while somebody listens. Who is further
/// behind reads the table.
pub const TAIL_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of small commits that are copied into one chunk of a response body. A commit that is
/// larger goes out as it is, shared by all subscribers: several of those are gathered by the
/// connection without a copy.
pub const CHUNK_BYTES: usize = 16 * 1024;
/// An MCP session that was not heard of for so long is over.
pub const MCP_SESSION_IDLE: Duration = Duration::from_hours(30 * 24);
/// How exactly it is known when an MCP session was last heard of. Finer would be a write for each
/// request.
pub const MCP_SEEN_RESOLUTION: Duration = Duration::from_mins(1);
/// An MCP session that was heard of so lately counts as open: its peer is idle and not offline.
/// Twice the resolution, or a session would be shut between two notes.
pub const MCP_SESSION_OPEN: Duration = Duration::from_mins(2);
/// Sessions of MCP clients that are kept in memory. The rest are a row away.
pub const MCP_SESSIONS_CACHED: usize = 4096;
/// How long an answer may take before its head is sent without it.
pub const MCP_PATIENCE: Duration = Duration::from_secs(1);
/// How long a call may take before a client that can have tasks is given one.
pub const MCP_TASK_AFTER: Duration = Duration::from_secs(5);
/// How long an MCP client waits for a daemon that is starting.
pub const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client waits before it comes back to a stream that broke, in milliseconds. Some try
/// only twice, so this is half of what a restart may take.
pub const MCP_RETRY_MS: u32 = 2000;
/// How long what is in a `requestState` counts.
pub const MCP_STATE_TTL: Duration = Duration::from_hours(1);
/// Requests in one JSON-RPC batch.
pub const MCP_BATCH: usize = 100;
/// Resources in one page of a list.
pub const MCP_RESOURCES_PAGE: u32 = 100;
/// Values that a completion offers (MCP: at most 100).
pub const MCP_COMPLETIONS: u32 = 100;
/// Between two notices that the list of resources has changed: every client reads it again.
pub const LIST_CHANGED_PAUSE: Duration = Duration::from_secs(10);

/// How long the answer to `initialize` waits for the first hook of a client that runs it as it
/// starts, so that its model is told its name.
pub const FIRST_HOOK: Duration = Duration::from_millis(400);
/// Between two looks for MCP sessions that nobody uses any more.
pub const MCP_SWEEP: Duration = Duration::from_hours(1);
/// A text of a record, in characters.
pub const GHAP_TEXT_CHARS: usize = 1000;
/// A longer text of a record: result, surprise, root cause, lesson, note. In characters.
pub const GHAP_LONG_TEXT_CHARS: usize = 2000;
/// What is kept of what an outcome said, in characters.
pub const OUTCOME_SUMMARY_CHARS: usize = 2000;
/// A session that was not heard of for so long may be taken for over: what it left open can be
/// adopted.
pub const SESSION_STALE: Duration = Duration::from_mins(30);
/// After how many tool calls a session is asked to look at its record.
pub const CHECK_IN: i64 = 10;
/// The most that may be asked for in its place.
pub const CHECK_IN_MAX: i64 = 1000;
/// How exactly a session's last sign of life is recorded when a hook tells of nothing else: finer
/// would be a write for each event.
pub const HOOK_SEEN_RESOLUTION: Duration = Duration::from_secs(5);
/// Most bytes of what a prompt brings up, beside messages that wait: both have to fit into what a
/// client takes.
pub const HOOK_CONTEXT_BYTES: usize = 2_400;
/// Most items of each kind in it.
pub const HOOK_CONTEXT_ITEMS: usize = 3;
/// How long one question for mail is held, in seconds: shorter than what clients and proxies take
/// for silence.
pub const MAIL_WAIT_SECONDS: u32 = 25;
/// How long it is remembered what a silent session was given: as long as clients keep their
/// conversations.
pub const SEEN_KEPT: Duration = Duration::from_hours(30 * 24);
/// Most ids of events, of which a hook knows that nobody saw the answer, in one request.
pub const HOOKS_LOST: usize = 2_000;
/// How long the ids of hooks' events are kept: one that could not be told is told again at the next
/// start of the daemon.
pub const HOOK_IDS_KEPT: Duration = Duration::from_hours(24 * 7);

/// How much of a prompt is looked at, in bytes: a pasted log says what it is about in its first
/// pages.
pub const PROMPT_BYTES: usize = 8 * 1024;
/// Most words of a prompt that are looked for, the rarest: the hundredth changes nothing but the
/// time.
pub const PROMPT_TERMS: usize = 32;
/// Most words of a prompt that are looked up as misspelt.
pub const PROMPT_TYPOS: u32 = 6;
/// Most entries of the index that a search goes through to find candidates; terms beyond that only
/// help to rank.
pub const SEARCH_POSTINGS: i64 = 1_000;
/// The same of a search with a filter, which may leave out most of them.
pub const SEARCH_POSTINGS_FILTERED: i64 = 20_000;
/// Most terms that are compared with the misspelt words of a prompt.
pub const SEARCH_TERMS_LIKE: u32 = 256;
/// How many candidates are ranked, unless more hits are asked for. A third would do on the
/// evaluation set.
pub const SEARCH_CANDIDATES: usize = 24;
/// Most of what a session was given that is held against a record that it has confirmed, the
/// latest.
pub const GIVEN_COMPARED: u32 = 200;
/// Most hits of a search.
pub const SEARCH_HITS: usize = 50;
/// A text that is searched for, in characters.
pub const SEARCH_QUERY_CHARS: usize = 10_000;

/// What a memory says, in characters.
pub const MEMORY_CHARS: usize = 10_000;
/// Most tags of a memory.
pub const MEMORY_TAGS: usize = 20;
/// A tag, in characters.
pub const MEMORY_TAG_CHARS: usize = 50;
/// A memory of at least this importance is worth telling to a session that has not asked for
/// anything yet.
pub const MEMORY_IMPORTANT: f64 = 0.7;
/// A value, in characters: a sentence or two.
pub const VALUE_CHARS: usize = 500;
/// Most values that are held against a prompt, the latest. Each is a sentence that somebody wrote
/// by hand.
pub const VALUES_RANKED: u32 = 500;
/// Records that there have to be before they are grouped: among fewer, what is alike is chance.
pub const CLUSTER_RECORDS: u64 = 20;
/// Most records that are grouped, the latest made: the work grows with the square of their number.
pub const CLUSTERED_RECORDS: u32 = 1000;
/// Smallest and largest context that may be asked for, in bytes. The smallest holds one lesson with
/// its heading.
pub const CONTEXT_BYTES_MIN: usize = 400;
/// See [`CONTEXT_BYTES_MIN`].
pub const CONTEXT_BYTES_MAX: usize = 40_000;
/// Bytes that one token is taken for.
pub const TOKEN_BYTES: usize = 4;
