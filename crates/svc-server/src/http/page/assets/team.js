// All agents in one list: those that the daemon hosts, and those that a person started.
import { OVER, UNREAD, nameOfHost } from './attention.js';
import { path } from './router.js';

/** Who works first, who waits next, who left last. */
const ORDER = ['running', 'busy', 'starting', 'stopping', 'requires_action', 'waiting', 'limited', 'online', 'idle', 'unreachable', 'offline', ...OVER];
const rank = (row) => (ORDER.includes(row.state) ? ORDER.indexOf(row.state) : ORDER.indexOf('idle'));

/** Whether somebody is gone. */
export const hasLeft = (row) => row.state === 'offline' || OVER.includes(row.state);

/** One row for each agent: with `isWhole` also for those that have ended. */
export function team(state, isWhole = false) {
  const trying = new Map();
  for (const record of state.ghap.values()) if (record.status === 'active') trying.set(record.session_id, record);
  const unread = new Map();
  const said = new Map();
  for (const message of state.messages.values()) {
    if (UNREAD.includes(message.state)) unread.set(message.to_peer, (unread.get(message.to_peer) ?? 0) + 1);
    const known = said.get(message.from_peer);
    if (!known || known.timestamp < message.timestamp) said.set(message.from_peer, message);
  }
  const peers = new Map();
  for (const peer of state.peers.values()) if (peer.session_id) peers.set(peer.session_id, peer);
  const rows = [];
  const hosted = new Set();
  for (const host of state.hosts?.values() ?? []) {
    const isOver = OVER.includes(host.state);
    const peer = peers.get(host.session_key) ?? peers.get(host.session_id);
    if (host.session_key) hosted.add(host.session_key);
    // A person may have taken up the conversation of one that is over.
    if (!isOver && host.session_id) hosted.add(host.session_id);
    if (isOver && !isWhole) continue;
    const words = state.words.get(host.id);
    rows.push({
      key: host.id, host, name: nameOfHost(host), kind: host.instance ?? host.backend, state: host.state, path: host.worktree,
      trying: isOver ? undefined : trying.get(host.session_key), words: words?.text ?? host.task ?? host.description, isTask: !words, since: words?.at ?? host.started_at,
      unread: isOver ? 0 : unread.get(peer?.peer_id) ?? 0, to: path('agents', host.id), searched: host.session_key,
    });
  }
  for (const peer of state.peers.values()) {
    if (peer.peer_id === 'operator' || peer.role === 'human' || hosted.has(peer.session_id)) continue;
    rows.push({
      key: peer.peer_id, peer, name: peer.display_name, kind: peer.backend, state: peer.status, path: peer.path, trying: trying.get(peer.session_id),
      words: said.get(peer.peer_id)?.text, since: peer.last_seen, unread: unread.get(peer.peer_id) ?? 0, to: path('agents', peer.peer_id),
    });
  }
  return rows.sort((one, other) => rank(one) - rank(other)
    || (hasLeft(one) ? String(other.since).localeCompare(String(one.since)) : one.name.localeCompare(other.name)));
}

/** Whether a row has all these words in it. */
export function fits(row, wanted) {
  const text = [row.name, row.kind, row.state, row.path, row.searched, row.words, row.trying?.goal].filter(Boolean).join(' ').toLowerCase();
  return wanted.toLowerCase().split(/\s+/).filter(Boolean).every((word) => text.includes(word));
}
