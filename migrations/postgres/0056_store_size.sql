-- How large the database was, about once an hour: the rate at which the disk fills.
create table store_size (
    at bigint primary key,
    -- bytes of the pages in use
    used_bytes bigint not null
);
