-- The last message to the operator is found at once.

create index message_to_operator on message (id) where to_peer = 'operator';
