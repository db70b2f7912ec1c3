-- Peers are looked for by session at each message. The index of a client's sessions begins with the client, so those looks read
-- all peers.
create index peer_session_key on peer (session_id collate nocase);
create index peer_key on peer (peer_id collate nocase);
