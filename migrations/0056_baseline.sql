-- The schema of version 56 in one piece. The texts are kept as SQLite keeps them, columns that came later at the end: those of
-- a file that came here step by step (`upgrade/`) are the same, letter by letter.

create table stream (
    id integer primary key,
    -- `task/<id>`, `peer/<id>`, `session/<id>`, `team`, `daemon`
    name text not null unique,
    created_at integer not null,
    -- set with the last event: nothing may follow it
    closed_at integer
, visibility text not null default 'team' check (visibility in ('team', 'operator')), owner text, project text, runner text) strict;

-- There is no head and no floor column: retention never removes the last event of a stream, so both are
-- index look-ups (max and min of seq), and an append does not rewrite a stream row.
create table event (
    -- Orders the whole log. Never used twice: the highest one belongs to the last event of some stream,
    -- and that one stays.
    position integer primary key,
    stream_id integer not null references stream (id),
    -- dense within its stream: 1, 2, 3 …, so that a reader can prove that nothing is missing
    seq integer not null,
    kind text not null,
    -- One line of JSON. Checked before it gets here; a constraint would parse it a second time.
    data text not null,
    -- unix milliseconds, the time of the commit
    at integer not null,
    -- the producer's own id for it: a repeat is answered with the seq first given
    producer_id text,
    unique (stream_id, seq)
) strict;
create unique index event_producer on event (stream_id, producer_id) where producer_id is not null;

-- Facts about the database as a whole, one a row. `trimmed`: the highest position that retention removed.
create table meta (
    name text primary key,
    value integer not null
) strict, without rowid;

create table peer (
    peer_id text primary key,
    display_name text not null,
    backend text not null,
    -- An absent path, session or pane is '': an empty field matches only an empty one, and null equals nothing.
    path text not null default '',
    session_id text not null default '',
    tmux_pane text not null default '',
    circle text not null,
    role text not null check (role in ('agent', 'orchestrator', 'human')),
    pid integer,
    metadata text check (metadata is null or json_valid(metadata)),
    -- the session key of the token that registered it; null for the operator
    owner text,
    registered_at integer not null,
    last_seen integer not null
, project text not null default '', process_started text, status text not null default 'offline'
    check (status in ('online', 'busy', 'waiting', 'idle', 'unreachable', 'offline')), status_rank integer not null generated always as (
    case status
        when 'online' then 0 when 'busy' then 1 when 'waiting' then 2 when 'idle' then 3 when 'unreachable' then 4
        else 5
    end
) virtual, since integer not null default 0, waiting_for text check (waiting_for is null or json_valid(waiting_for)), open_calls text not null default '[]' check (json_valid(open_calls)), permission_mode text, evidence text not null default 'process'
    check (evidence in ('hook', 'registry', 'app-server', 'plugin', 'host', 'process')), machine_id text not null default '') strict;

-- The identity rule of registration, kept by the database as well.
create unique index peer_session on peer (backend, session_id) where session_id <> '';
create index peer_owner on peer (owner) where owner is not null;
create unique index peer_place on peer (backend, path, tmux_pane, coalesce(owner, ''))
    where session_id = '' and peer_id <> 'operator';
-- Peers are looked for by session at each message. The index of a client's sessions begins with the client, so those looks read
-- all peers.
create index peer_session_key on peer (session_id collate nocase);
create index peer_key on peer (peer_id collate nocase);
create index peer_list on peer (status_rank, display_name, peer_id);
create index peer_stale on peer (last_seen) where status <> 'offline';

-- No foreign keys to peer: a message outlives its sender and its receiver.
create table message (
    -- order of arrival, which is the order of the inbox
    id integer primary key,
    message_id text not null unique,
    type text not null check (type in ('query', 'response', 'notification', 'broadcast')),
    from_peer text not null,
    to_peer text not null,
    text text not null,
    correlation_id text,
    idempotency_key text,
    state text not null check
        (state in ('accepted', 'queued', 'offered', 'injected', 'acked', 'expired', 'refused', 'undeliverable')),
    -- an offered message comes again after this time unless it was acknowledged
    leased_until integer,
    at integer not null
, given_by text, text_id integer references message_text (id), sent_by text, bytes integer not null default 0, source_tool text, source_session text, run_id text, turn integer, held_until integer, by_call integer not null default 0 check (by_call in (0, 1)), begins_turn integer not null default 0 check (begins_turn in (0, 1)), came_to_nothing integer not null default 0 check (came_to_nothing in (0, 1)), waits integer not null generated always as (
    came_to_nothing = 0 and (
        state in ('accepted', 'queued', 'offered')
        or (state = 'injected' and (type = 'query' or given_by is null or coalesce(leased_until, 1) = 0))
    )
) virtual, wakes integer not null default 0 check (wakes in (0, 1)), is_answered integer not null default 0 check (is_answered in (0, 1)), handover_id text references handover (handover_id), failed_handovers integer not null default 0, no_wake integer not null default 0 check (no_wake in (0, 1))) strict;
create unique index message_idempotency on message (from_peer, to_peer, idempotency_key)
    where idempotency_key is not null;
create index message_text_of on message (text_id) where text_id is not null;

-- What one reply of a hook gave.
create index message_given on message (given_by) where given_by is not null;

-- The question that an answer names by the correlation id that the asker chose.
create index message_question on message (to_peer, correlation_id) where type = 'query' and correlation_id is not null;
create index message_to_operator on message (id) where to_peer = 'operator';

-- Answers to a question.
create index message_answers on message (correlation_id) where correlation_id is not null;
create index message_run on message (run_id) where run_id is not null;
create index message_by_call on message (from_peer, to_peer, at) where by_call = 1;
create index message_inbox on message (to_peer, id) where waits = 1;
create index message_turn on message (to_peer, id) where begins_turn = 1;

-- It goes with the last of its copies.
create trigger message_text_unused after delete on message when old.text_id is not null begin
    delete from message_text
    where id = old.text_id and not exists (select 1 from message where text_id = old.text_id);
end;

create trigger message_use_added after insert on message when new.waits begin
    insert into message_use (holder, messages, bytes) values ('to:' || new.to_peer, 1, new.bytes)
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
    insert into message_use (holder, messages, bytes)
    select 'by:' || new.sent_by, 1, iif(new.text_id is null, new.bytes, 0)
    where new.sent_by is not null
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
end;

create trigger message_use_again after update of state, leased_until, given_by on message
when new.waits and not old.waits begin
    insert into message_use (holder, messages, bytes) values ('to:' || new.to_peer, 1, new.bytes)
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
    insert into message_use (holder, messages, bytes)
    select 'by:' || new.sent_by, 1, iif(new.text_id is null, new.bytes, 0)
    where new.sent_by is not null
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
end;

create trigger message_use_ended after update of state, leased_until, given_by, came_to_nothing on message
when old.waits and not new.waits begin
    update message_use set messages = messages - 1, bytes = bytes - old.bytes
    where holder = 'to:' || old.to_peer;
    update message_use set messages = messages - 1, bytes = bytes - iif(old.text_id is null, old.bytes, 0)
    where holder = 'by:' || old.sent_by;
    delete from message_use
    where holder in ('to:' || old.to_peer, 'by:' || old.sent_by) and messages <= 0;
end;

create trigger message_use_removed after delete on message when old.waits begin
    update message_use set messages = messages - 1, bytes = bytes - old.bytes
    where holder = 'to:' || old.to_peer;
    update message_use set messages = messages - 1, bytes = bytes - iif(old.text_id is null, old.bytes, 0)
    where holder = 'by:' || old.sent_by;
    delete from message_use
    where holder in ('to:' || old.to_peer, 'by:' || old.sent_by) and messages <= 0;
end;

-- Each state that a message went through, with its time. None is skipped.
create table message_state (
    message_id text not null references message (message_id),
    state text not null,
    at integer not null,
    reason text, via text,
    primary key (message_id, state)
) strict, without rowid;

create table task (
    task_id text primary key,
    stream_id integer not null unique references stream (id),
    title text,
    agent text,
    prompt text,
    from_peer text,
    metadata text check (metadata is null or json_valid(metadata)),
    status text not null check (status in ('pending', 'active', 'done', 'failed', 'cancelled', 'expired')),
    exit_code integer,
    signal text,
    error text,
    -- the caller that made it: 'operator' or 'session:<key>'
    created_by text not null,
    idempotency_key text,
    -- process that runs it, where the runner said so: when it is gone, the task is over
    runner_pid integer,
    runner_started text,
    cancel_requested_at integer,
    created_at integer not null,
    closed_at integer
, project text not null default '', runner text, reason text, result text, machine_id text not null default '') strict;
create unique index task_idempotency on task (created_by, idempotency_key) where idempotency_key is not null;
create index task_created on task (created_at, task_id);
create index task_open on task (status) where status in ('pending', 'active');
create index task_maker on task (created_by) where closed_at is null;

create table token (
    token_id text primary key,
    -- SHA-256 of the token
    hash blob not null unique check (length(hash) = 32),
    -- the subject: the session that whoever holds the token speaks for
    session text not null,
    scopes text not null check (json_valid(scopes)),
    created_at integer not null,
    expires_at integer not null,
    last_used_at integer,
    revoked_at integer
, project text not null default '', client_pid integer, client_started text, cwd text, revoke_reason text
    check (revoke_reason is null or revoke_reason in ('revoked', 'ended', 'gone', 'replaced')), operator_credential text, bearer text, machine_id text not null default '') strict;
create index token_session on token (session);
create index token_process on token (client_pid, client_started) where client_pid is not null and revoked_at is null;
create index token_browser on token (expires_at) where operator_credential is not null;

create table mcp_session (
    session_id text primary key,
    -- the caller that opened it, 'operator' or 'session:<key>': nobody else may use it
    principal text not null,
    -- http: one path, answers on the request's own response; sse: the transport of 2024-11-05
    transport text not null check (transport in ('http', 'sse')),
    revision text not null,
    -- who the client says it is, and what it can do
    client text check (client is null or json_valid(client)),
    capabilities text not null check (json_valid(capabilities)),
    log_level text,
    -- fingerprint of the list of tools that the client has seen: another one after a restart is told
    tools integer,
    created_at integer not null,
    last_seen_at integer not null,
    closed_at integer
, client_session text) strict;
create index mcp_session_idle on mcp_session (last_seen_at) where closed_at is null;
create index mcp_session_client on mcp_session (client_session, last_seen_at)
where client_session is not null and closed_at is null;
create index mcp_session_principal on mcp_session (principal) where closed_at is null;

create table mcp_subscription (
    session_id text not null references mcp_session (session_id),
    uri text not null,
    -- the stream that the resource shows
    stream text not null,
    primary key (session_id, uri)
) strict, without rowid;

-- A call that may take time. Its messages are the stream `mcp/<call_id>` (with the transport of 2024-11-05, that of the
-- session, `mcp/<session_id>`), so whoever comes back reads on where it was.
create table mcp_call (
    call_id text primary key,
    -- null where a request stands for itself (2026-07-28)
    session_id text references mcp_session (session_id),
    principal text not null,
    -- for whom the tool acts
    acts_for text,
    revision text not null,
    -- the JSON-RPC id, as JSON
    rpc_id text not null,
    tool text not null,
    -- the `params` of the request, to run it again
    params text not null check (json_valid(params)),
    -- whether the client was given it as a task
    is_task integer not null check (is_task in (0, 1)),
    state text not null check (state in ('working', 'input_required', 'completed', 'failed', 'cancelled')),
    -- of a task: what the client is asked, and what it has answered
    asks text check (asks is null or json_valid(asks)),
    answers text check (answers is null or json_valid(answers)),
    started_at integer not null,
    updated_at integer not null,
    ended_at integer
, credential text) strict;
create index mcp_call_open on mcp_call (state, call_id) where state in ('working', 'input_required');
create index mcp_call_session on mcp_call (session_id, rpc_id) where session_id is not null;

-- Keys that the daemon made for itself. They last as long as the database.
create table secret (
    name text primary key,
    value blob not null
) strict, without rowid;

-- A client's session, by the client's own id. `events` of it stand in the stream `session/<session_id>`.
create table session (
    session_id text primary key,
    -- root of the project that it works in; '' if it did not say
    project text not null default '',
    client text,
    -- how it last began
    source text not null check (source in ('startup', 'resume', 'clear', 'compact', 'fork')),
    -- the caller that made it known: 'operator' or 'session:<key>'
    created_by text not null,
    started_at integer not null,
    last_seen_at integer not null,
    ended_at integer,
    end_reason text
, secret blob check (secret is null or length(secret) = 32), reader_key text generated always as (
    case when created_by = 'operator' then session_id
        when substr(created_by, 1, 8) = 'session:' then substr(created_by, 9)
    end
) virtual) strict;
create index session_seen on session (last_seen_at, session_id);
create index session_project on session (project, last_seen_at, session_id);
create index session_owner on session (created_by);
create index session_latest on session (created_by, last_seen_at) where ended_at is null;
create index session_secret on session (ended_at) where secret is not null;

-- Tool calls of a session. Those of a sub-agent count apart, under its `agent_id`; '' is the session itself.
create table session_counter (
    session_id text not null references session (session_id),
    agent_id text not null default '',
    -- all of them
    total integer not null default 0,
    -- since the last check-in, update of the active record, or reset
    since integer not null default 0,
    primary key (session_id, agent_id)
) strict, without rowid;

create table tool_use (
    session_id text not null references session (session_id),
    agent_id text not null default '',
    tool_name text not null,
    count integer not null default 0,
    first_at integer not null,
    last_at integer not null,
    primary key (session_id, agent_id, tool_name)
) strict, without rowid;

-- Something that was seen to happen and that a prediction can be held against: a test run, a build.
create table outcome (
    outcome_id text primary key,
    session_id text not null references session (session_id),
    agent_id text not null default '',
    project text not null default '',
    -- the client's id of the tool call, so that a repeat is known
    tool_use_id text,
    command text not null,
    verdict text not null check (verdict in ('pass', 'fail', 'unknown')),
    summary text not null,
    at integer not null
) strict;
create index outcome_session on outcome (session_id, at);
create unique index outcome_tool_use on outcome (session_id, tool_use_id) where tool_use_id is not null;

-- Facts about the daemon as a whole that are text. `current_session`: the session that was last started by
-- `start_session`, which is meant by callers that have none of their own.
create table setting (
    name text primary key,
    value text not null
) strict, without rowid;

-- Goal, hypothesis, action, prediction: one record of an attempt.
create table ghap (
    -- order of creation, and the key of the search index
    id integer primary key,
    ghap_id text not null unique,
    session_id text not null references session (session_id),
    project text not null default '',
    domain text not null,
    strategy text not null,
    goal text not null,
    hypothesis text not null,
    action text not null,
    prediction text not null,
    -- how sure its maker is that the prediction comes true, 0 to 1
    probability real check (probability between 0 and 1),
    iteration_count integer not null default 1,
    status text not null check (status in ('active', 'confirmed', 'falsified', 'abandoned')),
    result text,
    surprise text,
    root_cause_category text,
    root_cause text,
    what_worked text,
    takeaway text,
    tier text check (tier in ('gold', 'silver', 'bronze', 'abandoned')),
    -- the outcome that the verdict rests on
    outcome_id text references outcome (outcome_id),
    -- where it came from, if it was imported; a repeat of the import is known by it
    imported_from text unique,
    created_at integer not null,
    updated_at integer not null,
    resolved_at integer
, confirmed_again integer not null default 0) strict;

-- One active record for a session, kept by the database as well.
create unique index ghap_active on ghap (session_id) where status = 'active';
create index ghap_project on ghap (project, id);
create index ghap_resolved on ghap (resolved_at) where resolved_at is not null;
create index ghap_session on ghap (session_id);

-- Of what is gone or says something else now. Whoever changes a record writes its terms anew.
create trigger ghap_unsaid after update of goal, hypothesis, action, prediction, result, surprise, root_cause, what_worked,
    takeaway on ghap
begin
    delete from ghap_text where id = old.id;
end;

create trigger ghap_removed before delete on ghap begin
    delete from ghap_text where id = old.id;
end;

create trigger ghap_unconfirmed after delete on ghap begin
    delete from confirmation where kind = 'experience' and item = old.ghap_id;
end;

-- What it said before it was changed.
create table ghap_history (
    ghap_id text not null references ghap (ghap_id),
    iteration integer not null,
    hypothesis text not null,
    action text not null,
    prediction text not null,
    -- when it was changed
    at integer not null,
    primary key (ghap_id, iteration)
) strict, without rowid;

create table ghap_note (
    id integer primary key,
    ghap_id text not null references ghap (ghap_id),
    note text not null,
    at integer not null
) strict;
create index ghap_note_of on ghap_note (ghap_id, id);

-- Terms of a record: words folded, split where identifiers have seams, and stemmed, with a space between.
create table ghap_text (
    id integer primary key,
    -- goal and hypothesis
    aim text not null,
    -- surprise, root cause, lesson
    lesson text not null,
    -- action, prediction, result
    rest text not null
) strict;
create trigger ghap_text_added after insert on ghap_text begin
    insert into ghap_fts (rowid, aim, lesson, rest) values (new.id, new.aim, new.lesson, new.rest);
    insert into term (term, records)
    select distinct value, 1
    from json_each('["' || replace(new.aim || ' ' || new.lesson || ' ' || new.rest, ' ', '","') || '"]')
    where value <> ''
    on conflict (term) do update set records = records + 1;
    insert into search_scope (name, memories) select 'project:' || project, 0 from ghap where id = new.id
    on conflict do nothing;
    insert into ghap_posting (term_id, scope_id, ghap_id)
    select distinct t.id, c.id, new.id
    from json_each('["' || replace(new.aim || ' ' || new.lesson || ' ' || new.rest, ' ', '","') || '"]') j
    cross join term t on t.term = j.value
    cross join search_scope c on c.name = (select 'project:' || project from ghap where id = new.id);
end;

create trigger ghap_text_removed after delete on ghap_text begin
    insert into ghap_fts (ghap_fts, rowid, aim, lesson, rest)
    values ('delete', old.id, old.aim, old.lesson, old.rest);
    update term set records = records - 1
    where term in (
        select value
        from json_each('["' || replace(old.aim || ' ' || old.lesson || ' ' || old.rest, ' ', '","') || '"]')
    );
    delete from ghap_posting
    where ghap_id = old.id
        and scope_id = (select id from search_scope where name = (select 'project:' || project from ghap where id = old.id))
        and term_id in (
            select t.id
            from json_each('["' || replace(old.aim || ' ' || old.lesson || ' ' || old.rest, ' ', '","') || '"]') j
            cross join term t on t.term = j.value
        );
end;

-- Terms are made by the program, which has to agree with itself between writing and asking; nothing is left to fold.
create virtual table ghap_fts using fts5 (
    aim, lesson, rest, content = 'ghap_text', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 0'
);

-- Where each term stands. BM25 over a prompt with all that its words may mean goes through every phrase for every row; a sum
-- over this does not.
create virtual table ghap_place using fts5vocab (ghap_fts, instance);

-- In how many records each term stands.
create table term (
    id integer primary key,
    term text not null unique,
    records integer not null
) strict;
create trigger term_added after insert on term begin
    insert into term_trigram (rowid, term) values (new.id, new.term);
end;

create trigger term_removed after delete on term begin
    insert into term_trigram (term_trigram, rowid, term) values ('delete', old.id, old.term);
end;

-- For a word that no record has: the terms that look like it.
create virtual table term_trigram using fts5 (term, content = 'term', content_rowid = 'id', tokenize = 'trigram');

-- Something that a session or a person wants to be remembered.
create table memory (
    -- order of creation, and the key of the index
    id integer primary key,
    memory_id text not null unique,
    -- root of the project that it belongs to; '' if it holds everywhere
    project text not null default '',
    category text not null,
    content text not null,
    -- SHA-256 of the content in hexadecimal: an index over contents would be as large as they are
    digest text not null,
    -- what it is found by; made by the program, as that of a record is
    terms text not null,
    importance real not null check (importance between 0 and 1),
    -- an array of texts
    tags text not null check (json_valid(tags)),
    -- the session that stored it
    session_id text not null,
    created_at integer not null
, confirmed_again integer not null default 0, shared integer not null default 0 check (shared in (0, 1)), scope text generated always as (
    iif(shared = 1, '*', iif(project <> '', 'project:' || project, 'session:' || session_id))
) virtual) strict;
create unique index memory_once on memory (project, category, digest, shared, iif(project = '' and shared = 0, session_id, ''));
create index memory_session on memory (session_id);
create trigger memory_added after insert on memory begin
    insert into search_scope (name, memories) values ('', 1), (new.scope, 1)
    on conflict (name) do update set memories = memories + 1;
    insert into memory_term (term, memories)
    select distinct value, 1 from json_each('["' || replace(new.terms, ' ', '","') || '"]') where value <> ''
    on conflict (term) do update set memories = memories + 1;
    insert into memory_posting (term_id, scope_id, memory_id)
    select distinct t.id, c.id, new.id
    from json_each('["' || replace(new.terms, ' ', '","') || '"]') j
    cross join memory_term t on t.term = j.value
    cross join search_scope c on c.name = new.scope;
end;

create trigger memory_removed after delete on memory begin
    delete from memory_posting
    where memory_id = old.id and scope_id = (select id from search_scope where name = old.scope)
        and term_id in (
            select t.id from json_each('["' || replace(old.terms, ' ', '","') || '"]') j
            cross join memory_term t on t.term = j.value
        );
    update memory_term set memories = memories - 1
    where term in (select value from json_each('["' || replace(old.terms, ' ', '","') || '"]'));
    update search_scope set memories = memories - 1 where name in ('', old.scope);
end;

create trigger memory_changed after update of terms, project, shared, session_id on memory begin
    insert into search_scope (name, memories) values ('', 1), (new.scope, 1)
    on conflict (name) do update set memories = memories + 1;
    insert into memory_term (term, memories)
    select distinct value, 1 from json_each('["' || replace(new.terms, ' ', '","') || '"]') where value <> ''
    on conflict (term) do update set memories = memories + 1;
    insert into memory_posting (term_id, scope_id, memory_id)
    select distinct t.id, c.id, new.id
    from json_each('["' || replace(new.terms, ' ', '","') || '"]') j
    cross join memory_term t on t.term = j.value
    cross join search_scope c on c.name = new.scope;
end;

create trigger memory_unconfirmed after delete on memory begin
    delete from confirmation where kind = 'memory' and item = old.memory_id;
end;

-- How the records were grouped last, one row for each way to look at them.
create table clustering (
    axis text primary key,
    -- count, last id and last change of the records: another text means that they have changed since
    state text not null,
    -- records that were looked at, and those of them that are like no others
    records integer not null,
    noise integer not null,
    -- the number of the next cluster that is like none before; one that is like a former one keeps its name
    next_label integer not null,
    at integer not null
) strict, without rowid;

-- Records that are alike. All rows of an axis are replaced together.
create table cluster (
    -- '<axis>_<label>'
    cluster_id text primary key,
    axis text not null references clustering (axis),
    label integer not null,
    -- how far its records can be trusted on average: gold 1, silver 0.8, bronze 0.5, abandoned 0.2
    avg_weight real not null,
    unique (axis, label)
) strict, without rowid;

create table cluster_member (
    cluster_id text not null references cluster (cluster_id) on delete cascade,
    ghap_id text not null references ghap (ghap_id) on delete cascade,
    -- cosine to the middle of the cluster
    similarity real not null,
    primary key (cluster_id, ghap_id)
) strict, without rowid;
create index cluster_member_of on cluster_member (ghap_id);

-- What a session was given already, so that it is not given twice. A session may be unknown to `session`.
create table seen (
    session_id text not null,
    kind text not null check (kind in ('experience', 'value', 'memory')),
    item text not null,
    -- when the item was last changed: a later version may come again
    version integer not null,
    at integer not null, may_repeat integer not null default 0 check (may_repeat in (0, 1)), hook_id text,
    primary key (session_id, kind, item, version)
) strict, without rowid;
create index seen_hook on seen (hook_id) where hook_id is not null;

-- Ids that `svc hook` gave to events, so that one that is sent again counts once. Kept for a day.
create table hook_seen (
    hook_id text primary key,
    at integer not null
, reminded_agent text, reminded_after integer) strict, without rowid;
create index hook_seen_at on hook_seen (at);

create table confirmation (
    -- what helped: a record (its `ghap_id`) or a memory (its `memory_id`)
    kind text not null check (kind in ('experience', 'memory')),
    item text not null,
    -- the record that was confirmed with it; each counts once
    confirmed_by text not null references ghap (ghap_id) on delete cascade,
    -- how it shows: it is named there, or its session was given it and it is about the same
    shown_by text not null check (shown_by in ('name', 'subject')),
    at integer not null,
    primary key (kind, item, confirmed_by)
) strict, without rowid;
create index confirmation_by on confirmation (confirmed_by);
create trigger confirmation_added after insert on confirmation begin
    update ghap set confirmed_again = confirmed_again + 1 where new.kind = 'experience' and ghap_id = new.item;
    update memory set confirmed_again = confirmed_again + 1 where new.kind = 'memory' and memory_id = new.item;
end;

create trigger confirmation_removed after delete on confirmation begin
    update ghap set confirmed_again = confirmed_again - 1 where old.kind = 'experience' and ghap_id = old.item;
    update memory set confirmed_again = confirmed_again - 1 where old.kind = 'memory' and memory_id = old.item;
end;

-- Calls of hooks whose answers nobody saw. One may be here before its event arrives. Kept as long as `hook_seen`.
create table hook_lost (
    hook_id text primary key,
    at integer not null
, created_by text not null default 'operator') strict, without rowid;
create index hook_lost_at on hook_lost (at);
create index hook_lost_created_by on hook_lost (created_by);

create table message_text (
    id integer primary key,
    text text not null
) strict;

-- A sentence that somebody drew from a cluster. It outlives the cluster, so it does not refer to it.
create table "learned_value" (
    id integer primary key,
    value_id text not null unique,
    project text not null default '',
    axis text not null,
    cluster_id text not null,
    text text not null,
    terms text not null,
    distance real not null,
    session_id text not null,
    validated_at integer not null
) strict;
create unique index learned_value_once on learned_value (cluster_id, text, project, iif(project = '', session_id, ''));

-- Messages that wait, by who sent them (`by:session:<key>`) and by whose inbox they are in (`to:<peer>`).
create table message_use (
    holder text primary key,
    messages integer not null,
    bytes integer not null
) strict, without rowid;

-- Records that were left open, and the session that was told of one last: it is told of once after it was left.
create table orphan_offer (
    ghap_id text primary key references ghap (ghap_id),
    session_id text not null,
    -- the hook whose reply told it; null if the hook has no id
    hook_id text,
    at integer not null
) strict, without rowid;

-- One-time codes that sign a browser in. A used or an old one is kept for a while, to say what is wrong with it.
create table login_code (
    -- SHA-256 of the code
    hash blob primary key check (length(hash) = 32),
    operator_credential text not null,
    expires_at integer not null,
    used_at integer
) strict, without rowid;

-- What a server listed when it last worked. The fingerprint is that of its entry: the lists of another entry are not its own.
create table source_list (
    machine_id text not null default '',
    name text not null,
    project text not null,
    fingerprint text not null,
    tools text not null check (json_valid(tools)),
    resources text not null check (json_valid(resources)),
    templates text not null check (json_valid(templates)),
    prompts text not null check (json_valid(prompts)),
    listed_at integer not null,
    primary key (machine_id, name, project)
) strict, without rowid;

-- What a server is doing.
create table source_state (
    machine_id text not null default '',
    name text not null,
    project text not null,
    state text not null,
    reason text,
    next_action text,
    attempt integer,
    next_at integer,
    since integer not null,
    primary key (machine_id, name, project)
) strict, without rowid;

-- Processes of servers. A row is there before the first request to the process, and goes when nothing of it is left.
create table source_process (
    -- Stands in the environment of the process and of all that it starts.
    mark text primary key,
    pid integer not null,
    -- When it started, as the system counts, and in which run of the system.
    started text not null,
    name text not null,
    project text not null,
    instance text not null,
    at integer not null
, machine_id text not null default '') strict, without rowid;

create table agent (
    agent_id text primary key,
    -- `agent/<agent_id>`: its last seq is the last offset that was taken over from the host
    stream_id integer not null unique references stream (id),
    instance text not null,
    backend text not null,
    -- `agent:<instance>:<name>`, in lower case
    session_key text not null,
    project text not null default '',
    cwd text not null,
    task text,
    description text,
    -- who started it: 'operator' or 'session:<key>'
    created_by text not null,
    state text not null check (state in ('starting', 'running', 'idle', 'requires_action', 'limited', 'stopping',
        'done', 'error', 'lost')),
    -- the host's process: its number and its start as the system counts it
    host_pid integer,
    pid integer not null default 0,
    -- the vendor's id of the conversation
    vendor_session text,
    exit_code integer,
    signal integer,
    error text,
    -- the token that it speaks with
    token_id text,
    -- the dispatched task that it was started for, and is ended after
    task_id text,
    -- milliseconds after which a request of it is denied
    request_timeout integer not null,
    idempotency_key text,
    -- fingerprint of the wish that the key stands for
    request_fingerprint text,
    started_at integer not null,
    ended_at integer
, parent_agent text, answer_key text, machine_id text not null default '', host_started text) strict;

-- Two live agents never share a key.
create unique index agent_live on agent (session_key) where ended_at is null;
create unique index agent_idempotency on agent (created_by, idempotency_key) where idempotency_key is not null;
create index agent_key on agent (session_key, started_at);
create index agent_started on agent (started_at, agent_id);
create index agent_instance on agent (instance, started_at);
create index agent_parent on agent (created_by) where ended_at is null;

-- The definitions of a child MCP server that a person has approved: those of its first connection after the approval. Those of a
-- project's server are what callers see.
create table source_pin (
    machine_id text not null default '',
    name text not null,
    project text not null,
    -- the approval of the file and the entry that they belong to
    basis text not null,
    tools text not null check (json_valid(tools)),
    resources text not null check (json_valid(resources)),
    templates text not null check (json_valid(templates)),
    prompts text not null check (json_valid(prompts)),
    -- the changes since then that an event has told of
    told text not null check (json_valid(told)),
    pinned_at integer not null,
    primary key (machine_id, name, project)
) strict, without rowid;

create view streams as
select
    s.name,
    coalesce((select min(e.seq) from event e where e.stream_id = s.id), 1) - 1 as floor,
    coalesce((select max(e.seq) from event e where e.stream_id = s.id), 0) as head,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.closed_at / 1000.0, 'unixepoch') as closed_at
from stream s;

create view history as
select
    e.position,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.at / 1000.0, 'unixepoch') as at,
    s.name as stream,
    e.seq,
    e.kind,
    e.data
from event e
join stream s on s.id = e.stream_id;

create view mcp_sessions as
select
    session_id,
    principal,
    transport,
    revision,
    json_extract(client, '$.name') as client,
    json_extract(client, '$.version') as client_version,
    strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', last_seen_at / 1000.0, 'unixepoch') as last_seen_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', closed_at / 1000.0, 'unixepoch') as closed_at
from mcp_session;

create view mcp_calls as
select
    call_id,
    tool,
    state,
    session_id,
    principal,
    revision,
    is_task,
    strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000.0, 'unixepoch') as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', ended_at / 1000.0, 'unixepoch') as ended_at,
    (ended_at - started_at) / 1000.0 as seconds
from mcp_call;

create view sessions_now as
select
    s.session_id,
    s.client,
    nullif(s.project, '') as project,
    s.source,
    coalesce((select sum(c.total) from session_counter c where c.session_id = s.session_id), 0) as tool_calls,
    (select g.goal from ghap g where g.session_id = s.session_id and g.status = 'active') as goal,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.started_at / 1000.0, 'unixepoch') as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.last_seen_at / 1000.0, 'unixepoch') as last_seen_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.ended_at / 1000.0, 'unixepoch') as ended_at,
    s.end_reason
from session s;

create view tool_usage as
select
    t.session_id,
    nullif(t.agent_id, '') as agent_id,
    nullif(s.project, '') as project,
    t.tool_name,
    t.count,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.first_at / 1000.0, 'unixepoch') as first_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.last_at / 1000.0, 'unixepoch') as last_at
from tool_use t
join session s on s.session_id = t.session_id;

-- How well predictions came true: the mean squared error of those that state a probability (Brier; 0 is perfect, 0.25
-- is what always saying one half earns), and the share of those that were confirmed.
create view ghap_calibration as
select
    s.client,
    g.domain,
    count(*) as records,
    avg(g.status = 'confirmed') as hit_rate,
    count(g.probability) as with_probability,
    avg((g.probability - (g.status = 'confirmed')) * (g.probability - (g.status = 'confirmed'))) as brier
from ghap g
join session s on s.session_id = g.session_id
where g.status in ('confirmed', 'falsified')
group by s.client, g.domain;

create view cluster_members as
select
    c.axis,
    c.cluster_id,
    m.similarity,
    g.ghap_id,
    g.domain,
    g.strategy,
    g.status,
    g.tier,
    g.goal
from cluster c
join cluster_member m on m.cluster_id = c.cluster_id
join ghap g on g.ghap_id = m.ghap_id;

create view ghap_journal as
select
    g.ghap_id,
    g.session_id,
    nullif(g.project, '') as project,
    g.domain,
    g.strategy,
    g.status,
    g.tier,
    g.iteration_count,
    g.goal,
    g.hypothesis,
    g.action,
    g.prediction,
    g.probability,
    g.result,
    g.surprise,
    g.root_cause_category,
    g.root_cause,
    g.what_worked,
    g.takeaway,
    g.outcome_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.updated_at / 1000.0, 'unixepoch') as updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.resolved_at / 1000.0, 'unixepoch') as resolved_at,
    g.confirmed_again
from ghap g;

create view memories as
select
    m.memory_id,
    nullif(m.project, '') as project,
    m.category,
    m.importance,
    m.tags,
    m.content,
    m.session_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.created_at / 1000.0, 'unixepoch') as created_at,
    m.confirmed_again
from memory m;

create view confirmations as
select
    c.kind,
    c.item,
    c.confirmed_by,
    g.session_id,
    c.shown_by,
    strftime('%Y-%m-%dT%H:%M:%fZ', c.at / 1000.0, 'unixepoch') as at
from confirmation c
join ghap g on g.ghap_id = c.confirmed_by;

create view team_values as
select
    v.value_id,
    nullif(v.project, '') as project,
    v.axis,
    v.cluster_id,
    v.text,
    v.distance,
    v.session_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', v.validated_at / 1000.0, 'unixepoch') as validated_at
from learned_value v;

create view tasks_now as
select
    t.task_id,
    t.status,
    t.title,
    t.agent,
    t.from_peer as "from",
    t.exit_code,
    t.signal,
    t.error,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.at / 1000.0, 'unixepoch') as updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.closed_at / 1000.0, 'unixepoch') as closed_at,
    e.seq as last_id,
    s.name as stream,
    -- "from" without quotation marks
    t.from_peer as sender,
    coalesce((select p.display_name from peer p where p.peer_id = t.from_peer), t.from_peer) as sender_name
from task t
join stream s on s.id = t.stream_id
join event e on e.stream_id = t.stream_id
    and e.seq = (select max(seq) from event where stream_id = t.stream_id);

-- Questions, each with the first answer of the peer that was asked. `waited_seconds` goes on until there is one.
create view conversations as
select
    strftime('%Y-%m-%dT%H:%M:%fZ', q.at / 1000.0, 'unixepoch') as asked_at,
    coalesce((select p.display_name from peer p where p.peer_id = q.from_peer), q.from_peer) as asker,
    coalesce((select p.display_name from peer p where p.peer_id = q.to_peer), q.to_peer) as asked,
    coalesce((select t.text from message_text t where t.id = q.text_id), q.text) as question,
    coalesce((select t.text from message_text t where t.id = a.text_id), a.text) as answer,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.at / 1000.0, 'unixepoch') as answered_at,
    round(max(coalesce(a.at / 1000.0, (julianday('now') - 2440587.5) * 86400.0) - q.at / 1000.0, 0), 1) as waited_seconds,
    case
        when a.id is not null then 'answered'
        when q.state in ('expired', 'refused', 'undeliverable') then q.state
        else 'open'
    end as state,
    q.message_id as question_id,
    a.message_id as answer_id,
    q.from_peer as asker_id,
    q.to_peer as asked_id
from message q
left join message a on a.id = (
    select min(r.id) from message r
    where r.correlation_id in (q.message_id, coalesce(q.correlation_id, q.message_id))
        and r.from_peer = q.to_peer and r.type <> 'query' and r.id > q.id
)
where q.type = 'query';

-- What was tried, and whether it worked: the records of the journal, and the runs of tests and builds that no record
-- rests on.
create view outcomes as
select
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(g.resolved_at, g.updated_at) / 1000.0, 'unixepoch') as at,
    'record' as kind,
    case g.status when 'confirmed' then 'yes' when 'falsified' then 'no' when 'abandoned' then 'given up' else 'open' end
        as worked,
    g.goal,
    g.action as tried,
    coalesce(g.result, g.root_cause, g.surprise) as result,
    o.command as proof,
    s.client,
    nullif(g.project, '') as project,
    g.session_id,
    g.ghap_id as id
from ghap g
join session s on s.session_id = g.session_id
left join outcome o on o.outcome_id = g.outcome_id
union all
select
    strftime('%Y-%m-%dT%H:%M:%fZ', o.at / 1000.0, 'unixepoch'),
    'run',
    case o.verdict when 'pass' then 'yes' when 'fail' then 'no' else 'unknown' end,
    null,
    o.command,
    o.summary,
    null,
    s.client,
    nullif(o.project, ''),
    o.session_id,
    o.outcome_id
from outcome o
join session s on s.session_id = o.session_id
where o.outcome_id not in (select g.outcome_id from ghap g where g.outcome_id is not null);

create view messages_now as
select
    m.message_id,
    m.type,
    m.state,
    m.from_peer,
    m.to_peer,
    coalesce((select t.text from message_text t where t.id = m.text_id), m.text) as text,
    m.correlation_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.at / 1000.0, 'unixepoch') as at,
    strftime('%Y-%m-%dT%H:%M:%fZ',
        (select max(st.at) from message_state st where st.message_id = m.message_id) / 1000.0,
        'unixepoch') as state_at,
    -- a sender or receiver that is no peer any more has no name but its id
    coalesce((select p.display_name from peer p where p.peer_id = m.from_peer), m.from_peer) as from_name,
    coalesce((select p.display_name from peer p where p.peer_id = m.to_peer), m.to_peer) as to_name,
    m.source_tool,
    m.source_session,
    m.run_id
from message m;

-- Sends between sessions, the latest first.
create view runs_now as
select
    a.run_id,
    iif(a.state in ('starting', 'sent'), 'queued', a.state) as state,
    a.mode,
    a.source_session,
    a.target_session,
    a.message_id,
    a.reply_id,
    a.reason,
    a.error,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.begun_at / 1000.0, 'unixepoch') as begun_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.ended_at / 1000.0, 'unixepoch') as ended_at
from assignment a
where a.message_id is not null
order by a.id desc;

create view peers_now as
select
    peer_id,
    display_name,
    backend,
    status,
    strftime('%Y-%m-%dT%H:%M:%fZ', since / 1000.0, 'unixepoch') as since,
    json_extract(waiting_for, '$.kind') as waits_for,
    role,
    circle,
    nullif(path, '') as path,
    nullif(session_id, '') as session_id,
    nullif(tmux_pane, '') as tmux_pane,
    pid,
    strftime('%Y-%m-%dT%H:%M:%fZ', registered_at / 1000.0, 'unixepoch') as registered_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', last_seen / 1000.0, 'unixepoch') as last_seen,
    (select count(*) from message m
      where m.to_peer = peer.peer_id
        and m.waits = 1) as waiting
from peer
order by status_rank, display_name;

create index session_reader on session (reader_key);

create index message_wakes on message (to_peer, at, from_peer) where wakes = 1;
-- A text that was given to a participant: with or without a task, with or without an answer that is
-- waited for. One table in place of `dispatch` and `conversation_run`; of work that went into an
-- inbox those had one row each.
create table assignment (
    -- the order in which they came
    id integer primary key,
    run_id text not null unique,
    -- where it is done; '' is the only machine
    machine_id text not null default '',
    -- whose project it is of: that of the task, else of who sent it
    project_id text not null default '',
    -- null: it is a message and no task
    task_id text unique references task (task_id),
    -- null: it is in no inbox. A hosted agent has a task's prompt from its host
    message_id text unique references message (message_id),
    mode text not null check (mode in ('followup', 'notify', 'steer')),
    -- `sent`: the host or the inbox has it; `running`: the model has it
    state text not null
        check (state in ('queued', 'starting', 'sent', 'running', 'ok', 'no_reply', 'timeout', 'error')),
    -- 'operator' or the key of the session; for a hosted one, its incarnation
    source_session text not null,
    source_peer text not null default '',
    source_agent text,
    source_tool text,
    -- who has it, '' until that is known
    target_session text not null default '',
    target_peer text not null default '',
    target_agent text,
    -- why it came to nothing: a code, and the same in words
    reason text,
    error text,
    -- the message that holds the reply, or says that there is none
    reply_id text,
    -- a call waits for the reply until then
    waits_until integer,
    -- what the call was told, 'queued' if it went on without the reply; null while it was told
    -- nothing
    answered text check (answered in ('queued', 'ok', 'no_reply', 'timeout', 'error')),
    idempotency_key text,
    created_at integer not null,
    begun_at integer,
    ended_at integer,
    -- of a task: who may take it, as {mode, model?, cwd?, resume?, agent_id?, peer_id?, failover?};
    -- failover: instances to try next
    instance text not null default '',
    backend text not null default '',
    requirements text not null default '{}' check (json_valid(requirements)),
    attempt integer not null default 1,
    deadline integer,
    -- whether the agent was started for it, and its peer goes with it
    is_spawned integer not null default 0 check (is_spawned in (0, 1)),
    removes_peer integer not null default 0 check (removes_peer in (0, 1)),
    -- offset of the input in the agent's stream: from there on it is known to be taken
    taken_at integer,
    has_words integer not null default 0 check (has_words in (0, 1)),
    -- bytes of the entry that the agent is saying that are frames already
    said integer not null default 0,
    -- how its turn ended, before the agent's program has
    turn text check (turn is null or json_valid(turn))
) strict;

create unique index assignment_key on assignment (source_session, idempotency_key) where idempotency_key is not null;

create index assignment_work on assignment (state, id) where task_id is not null and ended_at is null;

create index assignment_agent on assignment (target_agent) where target_agent is not null and ended_at is null;

create index assignment_source on assignment (source_session) where ended_at is null;

create index assignment_pair on assignment (source_session, target_peer, created_at);

-- Whoever ends the task ends the work.
create trigger assignment_over after update of closed_at on task when new.closed_at is not null begin
    update assignment set state = iif(new.status = 'done', 'ok', 'error'), ended_at = new.closed_at
    where task_id = new.task_id and ended_at is null;
end;

-- What is asked of a person: by a hosted agent, or by the client of an attended session, which has no agent.
create table request (
    request_id text primary key,
    agent_id text references agent (agent_id),
    session_key text not null,
    -- whose the agent or the session is
    created_by text not null,
    project text not null,
    kind text not null check (kind in ('permission', 'question')),
    title text not null,
    cwd text,
    options text not null check (json_valid(options)),
    tool text check (tool is null or json_valid(tool)),
    -- what a client of an attended session asks, in its own form: its answer is made from it. With the calls that were open then
    prompt text check (prompt is null or json_valid(prompt)),
    opened_at integer not null,
    -- when it is denied, if it is
    deadline integer,
    -- an answer that the client has not shown to have taken: {option_id?, by}
    answering text check (answering is null or json_valid(answering)),
    closed_at integer,
    option_id text,
    -- a principal, or 'terminal', 'timeout', 'policy', 'interrupt', 'exit', 'lost', 'gone'
    answered_by text
) strict;

create index request_session on request (session_key, opened_at) where agent_id is null;

create index request_open on request (session_key) where closed_at is null;

create index request_due on request (deadline) where closed_at is null and deadline is not null;

create index request_agent on request (agent_id) where closed_at is null;

create index request_opened on request (opened_at, request_id);

-- Lists read their page in the order of an index, and what is open without what has ended.
create index task_status on task (status, created_at, task_id);

create index task_agent on task (agent, created_at, task_id) where agent is not null;

create index task_sender on task (from_peer, created_at, task_id) where from_peer is not null;

create index session_open on session (last_seen_at, session_id) where ended_at is null;

create index peer_heard on peer (last_seen, peer_id) where role <> 'human' and (session_id <> '' or owner is not null);

create index ghap_open on ghap (id) where status = 'active';

create index ghap_left on ghap (project, updated_at) where status = 'active';

create index ghap_changed on ghap (updated_at) where status <> 'active';

-- Most events are frames, and few readers look for those of all streams.
create index event_kind on event (kind, position) where kind <> 'frame';

create trigger message_answered after insert on message when new.type <> 'query' and new.correlation_id is not null begin
    update message set is_answered = 1
    where message_id = new.correlation_id and type = 'query' and to_peer = new.from_peer and id < new.id and is_answered = 0;
    update message set is_answered = 1
    where correlation_id = new.correlation_id and type = 'query' and to_peer = new.from_peer and id < new.id
        and is_answered = 0;
end;

create index message_open on message (id) where type = 'query' and state not in ('expired', 'refused', 'undeliverable')
    and came_to_nothing = 0 and is_answered = 0;

create index message_pair on message (from_peer, to_peer, id);

create index message_sender on message (from_peer, id);

create index message_receiver on message (to_peer, id);

-- What each record adds to sums over records. A subject is what is counted: all records; those that have ended; those with a
-- verdict by strategy, by client, by tenth of the stated probability and by week (from Monday, in UTC); causes of wrong ones.
create view ghap_share as
select g.id, g.session_id, g.project, 'record' as subject, '' as item, '' as domain, '' as detail, 0 as confirmed, 0 as stated,
    0.0 as probability, 0.0 as error
from ghap g
union all
select g.id, g.session_id, g.project, 'ended', '', '', '', 0, 0, 0.0, 0.0
from ghap g where g.status <> 'active'
union all
select g.id, g.session_id, g.project, 'strategy', g.strategy, g.domain, '', g.status = 'confirmed', 0, 0.0, 0.0
from ghap g where g.status in ('confirmed', 'falsified')
union all
select g.id, g.session_id, g.project, 'cause', g.root_cause_category, g.domain, g.strategy, 0, 0, 0.0, 0.0
from ghap g where g.status = 'falsified' and g.root_cause_category is not null
union all
select g.id, g.session_id, g.project, 'client', coalesce((select s.client from session s where s.session_id = g.session_id), ''),
    g.domain, '', g.status = 'confirmed', g.probability is not null, coalesce(g.probability, 0.0),
    coalesce((g.probability - (g.status = 'confirmed')) * (g.probability - (g.status = 'confirmed')), 0.0)
from ghap g where g.status in ('confirmed', 'falsified')
union all
select g.id, g.session_id, g.project, 'tenth', cast(min(cast(g.probability * 10 as integer), 9) as text), g.domain, '',
    g.status = 'confirmed', 1, g.probability, 0.0
from ghap g where g.status in ('confirmed', 'falsified') and g.probability is not null
union all
select g.id, g.session_id, g.project, 'week',
    printf('%013d', (g.resolved_at - 345600000) / 604800000 * 604800000 + 345600000), g.domain, '', g.status = 'confirmed', 0, 0.0,
    0.0
from ghap g where g.status in ('confirmed', 'falsified') and g.resolved_at is not null;

-- Sums of these, kept with the records: of all, and of each project.
create table ghap_sum (
    -- '*' for all, else the project
    scope text not null,
    subject text not null,
    item text not null,
    domain text not null,
    detail text not null,
    records integer not null,
    confirmed integer not null,
    -- those that state a probability, its sum and that of the squared errors
    stated integer not null,
    probability real not null,
    error real not null,
    primary key (scope, subject, item, domain, detail)
) strict, without rowid;

create trigger ghap_sum_added after insert on ghap begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, 1, p.confirmed, p.stated, p.probability, p.error
    from ghap_share p cross join (select '*' as scope union all select new.project) c
    where p.id = new.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records + 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = probability + excluded.probability, error = error + excluded.error;
end;

create trigger ghap_sum_removed before delete on ghap begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, -1, -p.confirmed, -p.stated, -p.probability, -p.error
    from ghap_share p cross join (select '*' as scope union all select old.project) c
    where p.id = old.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records - 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = iif(stated + excluded.stated = 0, 0.0, probability + excluded.probability),
        error = iif(stated + excluded.stated = 0, 0.0, error + excluded.error);
end;

create trigger ghap_sum_changing before update of session_id, project, domain, strategy, status, probability,
    root_cause_category, resolved_at on ghap
begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, -1, -p.confirmed, -p.stated, -p.probability, -p.error
    from ghap_share p cross join (select '*' as scope union all select old.project) c
    where p.id = old.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records - 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = iif(stated + excluded.stated = 0, 0.0, probability + excluded.probability),
        error = iif(stated + excluded.stated = 0, 0.0, error + excluded.error);
end;

create trigger ghap_sum_changed after update of session_id, project, domain, strategy, status, probability,
    root_cause_category, resolved_at on ghap
begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, 1, p.confirmed, p.stated, p.probability, p.error
    from ghap_share p cross join (select '*' as scope union all select new.project) c
    where p.id = new.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records + 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = probability + excluded.probability, error = error + excluded.error;
end;

-- The client of a session may become known after its first records.
create trigger ghap_sum_client_changing before update of client on session when new.client is not old.client begin
    insert into ghap_sum
    select iif(c.is_all, '*', p.project), p.subject, p.item, p.domain, p.detail, -1, -p.confirmed, -p.stated, -p.probability,
        -p.error
    from ghap_share p cross join (select 1 as is_all union all select 0) c
    where p.session_id = old.session_id and p.subject = 'client'
    on conflict (scope, subject, item, domain, detail) do update set
        records = records - 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = iif(stated + excluded.stated = 0, 0.0, probability + excluded.probability),
        error = iif(stated + excluded.stated = 0, 0.0, error + excluded.error);
end;

create trigger ghap_sum_client_changed after update of client on session when new.client is not old.client begin
    insert into ghap_sum
    select iif(c.is_all, '*', p.project), p.subject, p.item, p.domain, p.detail, 1, p.confirmed, p.stated, p.probability, p.error
    from ghap_share p cross join (select 1 as is_all union all select 0) c
    where p.session_id = new.session_id and p.subject = 'client'
    on conflict (scope, subject, item, domain, detail) do update set
        records = records + 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = probability + excluded.probability, error = error + excluded.error;
end;

-- These, and how many memories each has; '' stands for all memories.
create table search_scope (
    id integer primary key,
    name text not null unique,
    memories integer not null
) strict;

-- In how many memories each term stands, and in which of each scope.
create table memory_term (
    id integer primary key,
    term text not null unique,
    memories integer not null
) strict;

create table memory_posting (
    term_id integer not null,
    scope_id integer not null,
    memory_id integer not null,
    primary key (term_id, scope_id, memory_id)
) strict, without rowid;

create trigger memory_changing before update of terms, project, shared, session_id on memory begin
    delete from memory_posting
    where memory_id = old.id and scope_id = (select id from search_scope where name = old.scope)
        and term_id in (
            select t.id from json_each('["' || replace(old.terms, ' ', '","') || '"]') j
            cross join memory_term t on t.term = j.value
        );
    update memory_term set memories = memories - 1
    where term in (select value from json_each('["' || replace(old.terms, ' ', '","') || '"]'));
    update search_scope set memories = memories - 1 where name in ('', old.scope);
end;

create index memory_important on memory (project, importance, id);

-- In which records of each project a term stands. A session's search reads these, and passes through no other project's.
create table ghap_posting (
    term_id integer not null,
    scope_id integer not null,
    ghap_id integer not null,
    primary key (term_id, scope_id, ghap_id)
) strict, without rowid;

-- The program moves no record. Whoever does writes its terms anew.
create trigger ghap_moved before update of project on ghap when new.project <> old.project begin
    delete from ghap_text where id = old.id;
end;

-- Texts that were handed to a client's own queue or inbox, until the client shows that it has them. The row stands before the text
-- is handed over. Its messages name it.
create table handover (
    handover_id text primary key,
    peer_id text not null,
    session_id text not null,
    -- the client's way
    via text not null,
    -- whether it was handed over in a turn, which goes on with it
    joins_turn integer not null check (joins_turn in (0, 1)),
    -- whether the client keeps it for its person
    is_held integer not null default 0 check (is_held in (0, 1)),
    -- where the client's own record of the conversation is, if that is a file
    record text,
    at integer not null
) strict;

create index handover_peer on handover (peer_id);

create index message_handover on message (handover_id) where handover_id is not null;

-- Data folders on hosts. What lives on a machine has its id; '' until the machine that has the file claims it.
create table machine (
    machine_id text primary key,
    name text not null,
    -- digest of how the host is known
    host text not null,
    first_seen integer not null,
    last_seen integer not null
) strict, without rowid;

-- Each `svc serve` that has not ended by itself. Times are of the database's clock.
create table daemon (
    daemon_id text primary key,
    machine_id text not null references machine (machine_id),
    -- run of the host's system, and its pid namespace
    boot text not null,
    pid integer not null,
    -- where other daemons reach it
    address text,
    version text not null,
    started_at integer not null,
    lease_until integer not null,
    -- when its end was noted that it did not note itself
    lost_at integer
) strict, without rowid;

-- How large the database was, about once an hour: the rate at which the disk fills.
create table store_size (
    at integer primary key,
    -- bytes of the pages in use
    used_bytes integer not null
) strict;

-- All memories, of whatever scope.
insert into search_scope (name, memories) values ('', 0);
