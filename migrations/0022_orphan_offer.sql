-- Records that were left open, and the session that was told of one last: it is told of once after it was left.
create table orphan_offer (
    ghap_id text primary key references ghap (ghap_id),
    session_id text not null,
    -- the hook whose reply told it; null if the hook has no id
    hook_id text,
    at integer not null
) strict, without rowid;
