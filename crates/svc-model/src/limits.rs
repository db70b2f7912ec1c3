//! Every bound of the system, one constant each, with its reason.

use std::time::Duration;

/// Maximum body of a `/v1` request, in bytes. Larger batches of events take several requests.
pub const V1_BODY_BYTES: usize = 1024 * 1024;
/// Maximum body of any other request, in bytes.
pub const BODY_BYTES: usize = 4 * 1024 * 1024;
/// Maximum body of a request without a credential, in bytes: a sign-in code, or a nonce.
pub const OPEN_BODY_BYTES: usize = 64 * 1024;
/// Maximum memory of the values of one body, in bytes: a hostile text takes 80 times its length.
pub const JSON_WEIGHT_BYTES: usize = 64 * 1024 * 1024;
/// A body up to this length is parsed on the thread that answers: a switch of threads takes longer.
pub const BODY_AT_ONCE_BYTES: usize = 64 * 1024;
/// Bodies up to this length are not checked against [`JSON_WEIGHT_BYTES`].
pub const JSON_UNWEIGHED_BYTES: usize = 64 * 1024;
/// Maximum levels of arrays and objects in a value of free form that is stored. Answers put it into
/// further levels, and parsers of JSON read about 128 in all.
pub const JSON_LEVELS: usize = 64;
/// Maximum `params` of `initialize`, in bytes: a client's name and capabilities.
pub const MCP_INTRODUCTION_BYTES: usize = 64 * 1024;
/// Maximum stored bytes of one capability. A larger one is stored without its content.
pub const MCP_CAPABILITY_BYTES: usize = 1024;
/// Maximum stored characters of a client's name, title and version.
pub const MCP_CLIENT_NAME_CHARS: usize = 200;
/// Maximum characters of a client's reason for a cancellation that are sent on to a source.
pub const CANCEL_REASON_CHARS: usize = 1000;
/// Maximum calls of sources that are suspended while clients without sessions are asked, for all
/// callers together. `budget.requests` bounds them per caller.
pub const SUSPENDED_CALLS: usize = 1000;
/// Maximum size of a file that only lists servers, of a project or a plugin. The file is untrusted.
pub const SOURCE_FILE_BYTES: u64 = 256 * 1024;
/// Maximum servers in one such file. A file with more is ignored.
pub const SOURCE_FILE_SERVERS: usize = 256;
/// Bytes of one server's error output that are stored per minute, with rows. More is only counted.
pub const SOURCE_STDERR_BYTES: usize = 64 * 1024;
/// Unsolicited messages of a server per second. Beyond that, its output waits for the next second.
pub const SOURCE_MESSAGES: u32 = 1000;
/// Pause between two fetches of a server's lists while they keep changing.
pub const SOURCE_REFETCH_PAUSE: Duration = Duration::from_secs(1);
/// How long a body may stall: of a request until it is rejected (408), of a response until its
/// reader is disconnected. A stream without events does not stall.
pub const BODY_STALL: Duration = Duration::from_secs(30);
/// Deadline for the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that a connection reads ahead, the maximum head of a request, and the maximum bytes of a
/// response that wait to be written.
pub const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// The system's send buffer per connection, in bytes.
pub const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// Chunks of responses up to this length are not counted while they wait: a connection has few.
pub const UNCOUNTED_BYTES: usize = 4 * 1024;
/// TCP connections without a valid credential. A further one closes the longest idle.
pub const UNAUTHENTICATED_CONNECTIONS: usize = 64;
/// Descriptors that TCP connections leave to the Unix socket, files and processes; or a quarter of
/// all descriptors if that is more.
pub const RESERVED_DESCRIPTORS: usize = 96;
/// Minimum bound of TCP connections, however few descriptors there are.
pub const LEAST_CONNECTIONS: usize = 16;
/// How long a browser caches the response to a preflight.
pub const PREFLIGHT_AGE: Duration = Duration::from_mins(10);
/// Silence after which an event stream sends a comment: proxies and clients time out in a minute.
pub const SSE_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Value of `retry:` for browsers, in milliseconds.
pub const SSE_RETRY_MS: u32 = 1000;
/// Grace period for requests in flight after the first signal.
pub const DRAIN: Duration = Duration::from_secs(10);

pub const PAGE_DEFAULT: u32 = 50;
pub const PAGE_MAX: u32 = 500;

/// Maximum length of an id in a look-up, in bytes. Our ids have 31.
pub const ID_BYTES: usize = 128;
/// Maximum length of a name, path, key or other short text, in bytes.
pub const SHORT_TEXT_BYTES: usize = 4096;
pub const METADATA_ENTRIES: usize = 64;
/// Maximum events of one request, and maximum rows of one statement of the log.
pub const EVENTS_PER_REQUEST: usize = 1000;
/// Maximum text of a message, in bytes. A `/v1` request can hold no more.
pub const MESSAGE_BYTES: usize = V1_BODY_BYTES;
/// Characters of a text in a list of messages. The message itself has the complete text.
pub const LISTED_TEXT_CHARS: u32 = 4000;
/// Weeks over which verdicts on records are counted.
pub const VERDICT_WEEKS: u32 = 104;
/// Maximum body of a reply to a task, in bytes: a model reads it.
pub const REPLY_BYTES: usize = 256 * 1024;
/// Maximum result of a task, in bytes. Its stream has the rest.
pub const TASK_RESULT_BYTES: usize = 256 * 1024;
/// Maximum line of an agent's output, and maximum text of an entry of its conversation, in bytes.
pub const AGENT_TEXT_BYTES: usize = 1024 * 1024;
/// Maximum bytes of an agent's output that a waiting caller gets.
pub const TASK_CONTENT_BYTES: usize = 5 * 1024 * 1024;
/// Characters of a result in the notification of the requester.
pub const NOTIFIED_RESULT_CHARS: usize = 2_000;
/// Maximum number of the operator's peers that are notified of a request.
pub const NOTIFIED_PEERS: u32 = 32;
/// Maximum lines of output that come with a task.
pub const TASK_FRAMES_MAX: u32 = 500;
/// Maximum bytes of output with a task, unless a single line has more: a model reads them.
pub const TASK_FRAMES_BYTES: usize = 256 * 1024;
pub const WATCHED_TASKS: usize = 64;
/// Maximum wait of a call for a task.
pub const TASK_WAIT: Duration = Duration::from_hours(1);
pub const PRODUCER_ID_BYTES: usize = 128;

/// Numbers to try as suffix of a peer's name that is taken.
pub const PEER_NAMES: u32 = 1000;
/// A peer without contact for this long is offline.
pub const PEER_TIMEOUT: Duration = Duration::from_mins(1);
/// Lease on messages that a reader took from an inbox. Without an ack they are delivered again.
pub const LEASE: Duration = Duration::from_mins(1);
/// A turn ends after this long without a hook and without an open tool call.
pub const TURN_SILENCE: Duration = Duration::from_mins(10);
/// How long a client may take to continue by itself after a usage limit. Messages wait meanwhile.
pub const AFTER_LIMIT: Duration = Duration::from_secs(90);
/// How long a client may take to record when a usage limit ends, after it has reported the limit.
pub const LIMIT_RECORD: Duration = Duration::from_mins(1);
/// Maximum time to the end of a usage limit: no vendor has a longer one.
pub const LIMIT_LASTS: Duration = Duration::from_hours(32 * 24);
/// How often clients' session files and the spool of hooks are polled.
pub const RECORDS_POLL: Duration = Duration::from_millis(400);
/// How long a client's record may contradict its hooks before only the hooks count.
pub const RECORD_LAG: Duration = Duration::from_secs(5);
/// Time after a turn's end in which a hook may report its final text. Then its questions fail.
pub const TURN_TEXT_GRACE: Duration = Duration::from_secs(3);
/// A client's session file from before the last event counts if it is unchanged after this time.
pub const RECORD_GRACE: Duration = Duration::from_secs(1);
/// Bytes at the end of a client's conversation file that are read.
pub const RECORD_TAIL_BYTES: u64 = 256 * 1024;
/// Maximum time that a tool call stays open: the report of its end may have been lost.
pub const OPEN_CALL: Duration = Duration::from_hours(12);
/// Maximum open tool calls that are stored of a session. A further one replaces the oldest.
pub const OPEN_CALLS: usize = 64;
/// How long after its last contact a session counts as alive if its process has several sessions:
/// nothing reports that its terminal was closed.
pub const SHARED_PROCESS_SESSION: Duration = Duration::from_hours(12);
/// Maximum characters of a session's request to a person.
pub const WAITING_TITLE_CHARS: usize = 300;
/// Maximum waiting messages of one inbox. Further ones are rejected; none is dropped.
pub const INBOX_MAX: u32 = 10_000;
/// How often the processes of peers are checked: the end of one shows within a second.
pub const PEER_CHECK: Duration = Duration::from_millis(800);
/// How often all other processes are checked, such as those of tasks' runners.
pub const PID_CHECK: Duration = Duration::from_secs(5);
/// How long a daemon's lease lasts, from each renewal.
pub const DAEMON_LEASE: Duration = Duration::from_secs(10);
/// How often a daemon renews its lease.
pub const DAEMON_RENEWAL: Duration = Duration::from_secs(3);
/// How long a machine is away before its peers are offline.
pub const MACHINE_AWAY: Duration = Duration::from_mins(10);
/// Turns of a session that messages of one sender, other than the operator, begin within
/// `WAKES_WINDOW`. Later messages wait for a turn that somebody else begins.
pub const WAKES: u32 = 20;
pub const WAKES_WINDOW: Duration = Duration::from_hours(1);
/// Messages that one session may send to another within `SESSION_SENDS_WINDOW`.
pub const SESSION_SENDS: u32 = 20;
pub const SESSION_SENDS_WINDOW: Duration = Duration::from_mins(1);
/// Maximum message from one session to another, in bytes.
pub const SESSION_MESSAGE_BYTES: usize = 64 * 1024;
/// Default wait of a send for its reply.
pub const SESSION_WAIT: Duration = Duration::from_secs(30);
pub const SESSIONS_MAX: u32 = 200;
/// Maximum bytes of a response with a session's history, and maximum characters of one text in it.
pub const SESSION_HISTORY_BYTES: usize = 80 * 1024;
pub const SESSION_HISTORY_CHARS: usize = 4_000;
/// Maximum depth of agents that start agents, and maximum live agents that one session has started.
pub const SPAWN_DEPTH: u32 = 3;
pub const SPAWN_CHILDREN: u64 = 5;
/// Messages per poll of an agent's mail, besides those that its host has.
pub const AGENT_MAIL: u32 = 64;
/// Messages that an agent's host may hold, of its 1,000 inputs. The rest is for prompts of tasks.
pub const HOST_MAIL: u32 = 900;
/// Silence after which a task whose runner's process has exited gets its terminal event: a runner
/// that ended normally may still be sending its last lines.
pub const RUNNER_GRACE: Duration = Duration::from_mins(1);
/// A task without events for this long expires.
pub const TASK_SILENCE: Duration = Duration::from_hours(24);

/// How often untaken messages and unbegun tasks are checked for expiry, which takes days.
pub const EXPIRY_POLL: Duration = Duration::from_hours(1);

pub const TOKEN_TTL: Duration = Duration::from_hours(12);
pub const TOKEN_TTL_MAX: Duration = Duration::from_hours(720);
/// Resolution of a token's last use: a write per request would cost more than the request.
pub const TOKEN_USE_RESOLUTION: Duration = Duration::from_mins(1);

pub const LOGIN_CODE_TTL: Duration = Duration::from_mins(1);
/// How long the row of a code is kept, to distinguish a used or expired code from a wrong one.
pub const LOGIN_CODE_KEPT: Duration = Duration::from_hours(24);
pub const BROWSER_TTL: Duration = Duration::from_hours(12);
/// How long the row of a browser is kept after its end.
pub const BROWSER_KEPT: Duration = Duration::from_hours(720);

/// How long a token is taken as valid without a look at its row. Bounds the delay until a daemon
/// notices that another daemon on the same database revoked the token.
pub const TOKEN_CACHE: Duration = Duration::from_secs(1);
/// Lifetime of the token of a client's process. A client that lives longer gets another.
pub const PROCESS_TOKEN_TTL: Duration = Duration::from_hours(168);
/// Tokens of a client's process that one process may hold. A further one replaces the oldest.
pub const BEARER_TOKENS: u32 = 4;
/// How long the tokens of an exited process are kept, so that rows that it owned keep their owner.
pub const GONE_PROCESSES_KEPT: Duration = Duration::from_hours(720);
/// How long the id of an ended session stays reserved for its principal.
pub const SESSION_KEY_KEPT: Duration = Duration::from_hours(720);
/// Sessions whose secrets one job of the sweep removes.
pub const SECRETS_PER_JOB: u32 = 200;
/// Maximum processes between a client and the command that it started.
pub const PROCESS_DEPTH: usize = 32;
/// Processes that one page of the sweep reads, and tokens that one write job revokes.
pub const PROCESSES_PER_PAGE: u32 = 200;

/// Copies of a broadcast that one write job stores: six rows each, with states and event.
pub const COPIES_PER_JOB: u32 = 5;
/// Rows that one write job of a sweep removes or changes.
pub const SWEPT_ROWS_PER_JOB: u32 = 500;
/// Messages to a removed peer that one write job ends: three rows each, with state and event.
pub const ENDED_MESSAGES_PER_JOB: u32 = 100;
/// Maximum write jobs of one commit. Bounds the wait of the first job.
pub const JOBS_PER_COMMIT: usize = 512;
/// Maximum write jobs with statements of their own in one commit: each may change a thousand rows.
pub const RUNS_PER_COMMIT: usize = 64;
/// Time that the jobs of one commit may take. After a longer commit, the next one takes fewer jobs.
pub const COMMIT_WORK: Duration = Duration::from_millis(2);
/// Bytes of appended events after which a commit takes no more jobs.
pub const COMMIT_BYTES: usize = 2 * 1024 * 1024;
/// Capacity of one session's queue of write jobs. When it is full, only that session waits.
pub const SESSION_WRITE_QUEUE: usize = 256;
/// Capacity of the queue of the operator and of the daemon itself.
pub const OPERATOR_WRITE_QUEUE: usize = 4096;
/// Streams whose state the writer caches. A full cache is cleared; a miss is one look-up.
pub const STREAMS_CACHED: usize = 65_536;
/// Reads of rows that may run at once on threads outside the runtime, and as many replays.
pub const READERS: u32 = 4;
/// How long the store waits for a lock of another process, such as a backup or a database shell.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a write waits in the queue while the database server does not answer.
pub const STORE_WAIT: Duration = Duration::from_secs(5);
/// Size to which a checkpoint truncates the write-ahead log, in bytes.
pub const WAL_BYTES: u64 = 64 * 1024 * 1024;
/// Size of the write-ahead log at which maintenance truncates it, in bytes.
pub const WAL_TRUNCATE_BYTES: u64 = 32 * 1024 * 1024;
/// How often maintenance checks the write-ahead log and retention.
pub const MAINTENANCE: Duration = Duration::from_mins(1);
/// How often maintenance measures the size of the database.
pub const SIZE_SAMPLES: Duration = Duration::from_hours(1);
/// How long measurements of the size are kept.
pub const SIZE_SAMPLES_KEPT: Duration = Duration::from_hours(30 * 24);
/// After this long with at most [`QUIET_WRITES`] writes, the daemon gives memory back.
pub const QUIET: Duration = Duration::from_secs(20);
/// Maximum writes within [`QUIET`] at which the daemon counts as quiet.
pub const QUIET_WRITES: u64 = 20;
/// Segments of a full-text index above which maintenance merges them: a search reads each of them.
pub const INDEX_SEGMENTS: i64 = 4;
/// Pages of an index that one write job merges. Bounds the delay of other writers.
pub const INDEX_MERGE_PAGES: i64 = 64;
/// Merge jobs per index and maintenance run. The next run continues.
pub const INDEX_MERGES: u32 = 16;
/// Events that retention removes in one write job. Bounds the delay of other writers.
pub const TRIM_BATCH: usize = 1000;
/// Bytes of rows that retention removes in one write job: every page of a large row is written.
pub const TRIM_BYTES: u64 = 2 * 1024 * 1024;
/// Approximate overhead of an event's row, in bytes: its numbers, and those in two indexes.
pub const EVENT_ROW_BYTES: u64 = 40;

/// Bytes of event data after which a page of events ends. A larger event has a page of its own.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Like [`PAGE_BYTES`], for an agent, which has to read them.
pub const AGENT_PAGE_BYTES: usize = 128 * 1024;
/// Bytes of cached results per kind of read. The cache is valid until the next commit.
pub const READS_BYTES: usize = 1024 * 1024;

/// Bytes of text after which a page of a replay ends. A larger event has a page of its own.
pub const REPLAY_BYTES: usize = 64 * 1024;
/// Pages of a replay that are read ahead of the client.
pub const REPLAY_AHEAD: usize = 3;
/// Pages that one statement reads for a reader of a stream. Afterwards other readers get the thread
/// and the connection, and the write-ahead log can be truncated.
pub const REPLAY_RUN: usize = 32;
/// Page cache of a connection for replays, in KiB: it reads each page of the file once.
pub const REPLAY_CACHE_KIB: i64 = 256;
/// Events in one page where events are read as values: with a filter, or within the daemon.
pub const REPLAY_ROWS: u32 = 256;
/// Positions that one page of a feed over several streams reads.
pub const SCAN_POSITIONS: i64 = 8192;
/// Bytes of frames in the tail of a stream with listeners. A reader further behind reads the table.
pub const TAIL_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of small commits that are copied into one chunk of a response body. A larger commit is
/// sent uncopied, shared by all subscribers; the connection gathers several of them without a copy.
pub const CHUNK_BYTES: usize = 16 * 1024;
/// An MCP session without requests for this long ends.
pub const MCP_SESSION_IDLE: Duration = Duration::from_hours(30 * 24);
/// Resolution of an MCP session's last use: a finer one would take a write per request.
pub const MCP_SEEN_RESOLUTION: Duration = Duration::from_mins(1);
/// An MCP session used within this time counts as open: its peer is idle and not offline. Twice
/// [`MCP_SEEN_RESOLUTION`], so that a session in use never counts as closed.
pub const MCP_SESSION_OPEN: Duration = Duration::from_mins(2);
/// MCP sessions that are cached in memory. A miss reads the table.
pub const MCP_SESSIONS_CACHED: usize = 4096;
/// How long a response may take before its head is sent alone.
pub const MCP_HEAD_DELAY: Duration = Duration::from_secs(1);
/// The interval at which clients poll a task, in milliseconds.
pub const MCP_POLL_MS: u64 = 1000;
/// The pause before the end of a call is stored again after a failure.
pub const MCP_END_RETRY: Duration = Duration::from_secs(1);
/// How long a call may take before a client that supports tasks is given one.
pub const MCP_TASK_AFTER: Duration = Duration::from_secs(5);
/// How long an MCP client waits for a daemon that is starting.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Retry delay of a client after a broken stream, in milliseconds. Some clients retry only twice,
/// so this is half of the time that a restart may take.
pub const MCP_RETRY_MS: u32 = 2000;
/// How long a `requestState` is valid.
pub const MCP_STATE_TTL: Duration = Duration::from_hours(1);
pub const MCP_BATCH: usize = 100;
pub const MCP_RESOURCES_PAGE: u32 = 100;
/// Minimum time between two notices of a changed list of resources: every client reads it again.
pub const LIST_CHANGED_PAUSE: Duration = Duration::from_secs(10);

/// How long the response to `initialize` waits for the first hook of a client that runs hooks at
/// its start, so that the response can contain the peer's name.
pub const FIRST_HOOK: Duration = Duration::from_millis(400);
/// How often unused MCP sessions are removed.
pub const MCP_SWEEP: Duration = Duration::from_hours(1);
/// Maximum characters of a text of a record.
pub const GHAP_TEXT_CHARS: usize = 1000;
/// Maximum characters of a longer text of a record: result, surprise, root cause, lesson, note.
pub const GHAP_LONG_TEXT_CHARS: usize = 2000;
/// Stored characters of an outcome's output.
pub const OUTCOME_SUMMARY_CHARS: usize = 2000;
/// A session without contact for this long counts as ended: its open record can be adopted.
pub const SESSION_STALE: Duration = Duration::from_mins(30);
/// Default number of tool calls after which a session is asked to check its record.
pub const CHECK_IN: i64 = 10;
/// Maximum that may be chosen instead of [`CHECK_IN`].
pub const CHECK_IN_MAX: i64 = 1000;
/// Resolution of a session's last contact: a finer one would take a write per event.
pub const HOOK_SEEN_RESOLUTION: Duration = Duration::from_secs(5);
/// Maximum bytes of context for a prompt. Waiting messages also have to fit.
pub const HOOK_CONTEXT_BYTES: usize = 2_400;
/// Maximum items of each kind in that context.
pub const HOOK_CONTEXT_ITEMS: usize = 3;
/// Seconds of one long poll for mail: less than the timeouts of clients and proxies.
pub const MAIL_WAIT_SECONDS: u32 = 25;
/// How long the items that a silent session was given are stored: as clients keep conversations.
pub const SEEN_KEPT: Duration = Duration::from_hours(30 * 24);
/// Maximum ids of hook events with untaken answers in one request.
pub const HOOKS_LOST: usize = 2_000;
/// How long ids of hook events are kept: undelivered events are sent again at the daemon's start.
pub const HOOK_IDS_KEPT: Duration = Duration::from_hours(24 * 7);

/// Bytes of a prompt that are read: the first pages of a pasted log show its subject.
pub const PROMPT_BYTES: usize = 8 * 1024;
/// Maximum words of a prompt that are searched, the rarest first: more only take time.
pub const PROMPT_TERMS: usize = 32;
/// Maximum words of a prompt that are looked up as misspelt.
pub const PROMPT_TYPOS: u32 = 6;
/// Maximum index entries that a search reads for candidates; further terms only affect the ranking.
pub const SEARCH_POSTINGS: i64 = 1_000;
/// Like [`SEARCH_POSTINGS`], for a search with a filter, which may exclude most of the entries.
pub const SEARCH_POSTINGS_FILTERED: i64 = 20_000;
/// How many entries of a term a session's search reads: the latest of those that it may read.
pub const SEARCH_POSTINGS_OF_TERM: u32 = 256;
/// A session's own records, or memories, of other projects that its search looks at: the latest.
pub const SEARCH_OWN: u32 = 64;
/// Maximum terms that are compared with the misspelt words of a prompt.
pub const SEARCH_TERMS_LIKE: u32 = 256;
/// Minimum candidates that are ranked. A third would suffice on the evaluation set.
pub const SEARCH_CANDIDATES: usize = 24;
/// Maximum given items, the latest, that are compared with a record that the session has confirmed.
pub const GIVEN_COMPARED: u32 = 200;
pub const SEARCH_HITS: usize = 50;
pub const SEARCH_QUERY_CHARS: usize = 10_000;

pub const MEMORY_CHARS: usize = 10_000;
pub const MEMORY_TAGS: usize = 20;
pub const MEMORY_TAG_CHARS: usize = 50;
/// Minimum importance of a memory that a session is given unasked at its start.
pub const MEMORY_IMPORTANT: f64 = 0.7;
/// Maximum characters of a value: a sentence or two.
pub const VALUE_CHARS: usize = 500;
/// Maximum values that are compared with a prompt, the latest. Each was written by hand.
pub const VALUES_RANKED: u32 = 500;
/// Minimum records for clustering: similarity among fewer is chance.
pub const CLUSTER_RECORDS: u64 = 20;
/// Maximum records that are clustered, the latest: the time grows with the square of their number.
pub const CLUSTERED_RECORDS: u32 = 1000;
/// Bounds of the requested context, in bytes. The minimum holds one lesson with its heading.
pub const CONTEXT_BYTES_MIN: usize = 400;
pub const CONTEXT_BYTES_MAX: usize = 40_000;
/// Assumed bytes of one token.
pub const TOKEN_BYTES: usize = 4;
