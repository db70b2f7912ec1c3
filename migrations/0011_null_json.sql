-- A check that is null passes, and here json_valid(null) is null. To the SQLite of some systems (3.40 for one) it is 0: there
-- `pragma integrity_check` complained of every row that has no such text, though nothing was wrong with it. A changed check
-- touches no row, so only its text changes (https://sqlite.org/lang_altertable.html#otheralter), where making the tables
-- anew would copy every task there is.
pragma writable_schema = on;

update sqlite_schema
set sql = replace(sql, 'metadata text check (json_valid(metadata))',
    'metadata text check (metadata is null or json_valid(metadata))')
where type = 'table' and name in ('peer', 'task');

update sqlite_schema
set sql = replace(sql, 'client text check (json_valid(client))',
    'client text check (client is null or json_valid(client))')
where type = 'table' and name = 'mcp_session';

update sqlite_schema
set sql = replace(
    replace(sql, 'asks text check (json_valid(asks))', 'asks text check (asks is null or json_valid(asks))'),
    'answers text check (json_valid(answers))', 'answers text check (answers is null or json_valid(answers))')
where type = 'table' and name = 'mcp_call';

-- Reads the schema again, and lets it alone from here on.
pragma writable_schema = reset;

-- Whoever else has the schema in memory is told by the counter that a real change moves.
create table schema_changed (id integer primary key) strict;
drop table schema_changed;
