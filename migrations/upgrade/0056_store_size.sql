-- How large the database was, about once an hour: the rate at which the disk fills.
create table store_size (
    at integer primary key,
    -- bytes of the pages in use
    used_bytes integer not null
) strict;
