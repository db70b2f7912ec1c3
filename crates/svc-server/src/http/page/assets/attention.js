// What needs a person: each thing with its one action.
import { isSeen } from './store.js';
import { path } from './router.js';
import { line } from './text.js';
import { exact } from './time.js';

const DAY = 86_400_000;
/** Age after which a message that nobody acknowledged is old, in ms. */
const OLD = 600_000;
/** What needs a person, the most urgent first. */
const RANK = ['request', 'waiting', 'limited', 'needs_auth', 'pending_approval', 'misconfigured', 'failed_server', 'changed', 'failed_task', 'expired_task', 'undeliverable', 'refused', 'unread', 'orphan'];
const WAITS_FOR = { permission: 'needs permission', question: 'asks a question', limit: 'has reached its usage limit' };

export const OVER = ['done', 'error', 'lost'];
/** Deliveries that nobody has taken yet. */
export const UNREAD = ['accepted', 'queued', 'offered'];

export function nameOf(state, id) {
  if (!id || id === 'operator') return id === 'operator' ? 'you' : '';
  return state.peers.get(id)?.display_name ?? state.names.get(id) ?? id;
}

export function nameOfHost(host) {
  return host?.session_key?.replace(/^agent:([^:]+):main$/, '$1').replace(/^agent:/, '') ?? host?.name ?? host?.id;
}

function hosts(state, found) {
  for (const request of state.requests?.values() ?? []) {
    if (request.closed_at) continue;
    const host = state.hosts?.get(request.agent_id);
    found.push({ key: request.request_id, kind: request.kind === 'question' ? 'question' : 'request', at: request.opened_at, text: request.title, who: nameOfHost(host) ?? state.peers.get(request.peer_id)?.display_name ?? request.session_key, to: path('agents', request.agent_id ?? request.peer_id ?? ''), request });
  }
  for (const host of state.hosts?.values() ?? []) {
    if (host.state !== 'limited') continue;
    const until = host.limited_until ? `goes on ${exact(new Date(host.limited_until).toISOString())}` : 'the vendor does not say when the limit ends';
    found.push({ key: host.id, kind: 'limited', at: host.started_at, text: `${host.instance ?? host.backend}: the vendor refuses for usage`, detail: until, to: path('agents', host.id), label: 'Send a prompt' });
  }
}

/** Sessions that show a prompt in their own terminal. */
function prompts(state, found) {
  // The key of a session is no end of its id: the id stands in it encoded. The peer of an open request is named.
  const asked = new Set([...(state.requests?.values() ?? [])].filter((request) => !request.closed_at).flatMap((request) => [request.peer_id, request.session_key]).filter(Boolean));
  const hosted = new Set([...(state.hosts?.values() ?? [])].flatMap((host) => [host.session_key, host.session_id]).filter(Boolean));
  for (const peer of state.peers.values()) {
    if (peer.status !== 'waiting' || hosted.has(peer.session_id)) continue;
    if (asked.has(peer.peer_id) || asked.has(peer.session_id)) continue;
    const { kind, since, title, tool, until } = peer.waiting_for ?? {};
    const what = typeof tool === 'string' ? tool : tool?.name;
    const where = kind === 'limit' ? (until ? `until ${exact(until)}` : 'the vendor does not say when the limit ends') : `answer it in its terminal${peer.path ? `, in ${peer.path}` : ''}`;
    found.push({ key: peer.peer_id, kind: 'waiting', at: since ?? peer.since ?? peer.last_seen, text: `${peer.display_name} ${WAITS_FOR[kind] ?? 'waits at its terminal'}${title || what ? `: ${[...new Set([what, title])].filter(Boolean).join(' ')}` : ''}`, detail: where, to: path('agents', peer.peer_id), label: 'Show session' });
  }
}

function servers(state, found) {
  const files = new Map();
  for (const source of state.sources?.values() ?? []) {
    const to = path('servers', '', { server: source.name });
    const item = { key: `${source.state} ${source.name} ${source.from}`, at: source.since, detail: [source.reason, source.next_action].filter(Boolean).join(' · '), to, source };
    if (source.state === 'pending_approval') {
      files.set(source.from, [...(files.get(source.from) ?? []), source]);
    } else if (source.state === 'needs_auth') {
      found.push({ ...item, kind: 'needs_auth', text: `${source.name} needs a login` });
    } else if (source.state === 'misconfigured') {
      found.push({ ...item, kind: 'misconfigured', text: `${source.name} is misconfigured`, label: 'Show entry' });
    } else if (source.state === 'failed') {
      found.push({ ...item, kind: 'failed_server', text: `${source.name} does not start` });
    } else if (source.changed && source.state !== 'hidden') {
      const text = `${source.name} has changed ${source.changed === 1 ? 'a definition' : `${source.changed} definitions`} since it was approved`;
      found.push({ ...item, kind: 'changed', text, label: 'Review changes' });
    }
  }
  for (const [from, sources] of files) {
    found.push({ key: `file ${from}`, kind: 'pending_approval', at: sources[0].since, text: `${from} wants to run ${sources.length === 1 ? 'a server' : `${sources.length} servers`}`, file: from, sources, to: path('servers', '', { server: sources[0].name }) });
  }
}

function work(state, found) {
  const now = Date.now();
  for (const task of state.tasks.values()) {
    const isBad = task.status === 'failed' || task.status === 'expired';
    const at = task.closed_at ?? task.updated_at;
    if (!isBad || isSeen(task.task_id) || now - Date.parse(at) >= 7 * DAY) continue;
    found.push({ key: task.task_id, kind: `${task.status}_task`, at, text: task.title ?? task.prompt ?? task.task_id, detail: task.error ?? (task.exit_code ? `exit ${task.exit_code}` : task.signal), to: path('tasks', task.task_id), label: 'Read output' });
  }
  for (const message of state.messages.values()) {
    const age = now - Date.parse(message.timestamp);
    const item = { key: message.id, at: message.timestamp, text: message.text, detail: `to ${nameOf(state, message.to_peer)}${message.reason ? `: ${message.reason}` : ''}`, to: path('messages', '', { message: message.id }) };
    if (message.state === 'undeliverable' || message.state === 'refused') {
      if (age < 7 * DAY && !isSeen(message.id)) found.push({ ...item, kind: message.state });
    } else if (UNREAD.includes(message.state) && age > OLD) {
      found.push({ ...item, kind: 'unread', label: 'Show message' });
    }
  }
  if (!state.loaded.has('sessions')) return;
  for (const record of state.ghap.values()) {
    if (record.status !== 'active' || state.sessions.has(record.session_id) || record.session_id === 'default') continue;
    found.push({ key: record.id, kind: 'orphan', at: record.updated_at, text: record.goal, detail: `its session is over${record.project ? `; an agent in ${line(record.project, 80)} can take it over` : ''}`, to: path('journal', record.id), record });
  }
}

/** Everything that waits for the person, the most urgent first. */
export function attention(state) {
  const found = [];
  hosts(state, found);
  prompts(state, found);
  servers(state, found);
  work(state, found);
  const rank = (kind) => RANK.indexOf(kind === 'question' ? 'request' : kind);
  return found.sort((one, other) => rank(one.kind) - rank(other.kind) || String(other.at).localeCompare(String(one.at)));
}
