-- A page of a replay ends by its bytes as it is read, so rows that are larger than others need no index.
drop index event_large;
drop index event_large_position;
