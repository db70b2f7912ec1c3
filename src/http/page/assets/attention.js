// What needs a person: each thing with its one action.
import { isSeen } from './store.js';
import { path } from './router.js';
import { exact } from './time.js';

const DAY = 86_400_000;
/** Age after which a message that nobody acknowledged is old, in ms. */
const OLD = 600_000;

export function nameOf(state, id) {
  if (!id || id === 'operator') return id === 'operator' ? 'operator' : '';
  return state.peers.get(id)?.display_name ?? id;
}

function nameOfHost(state, id) {
  const host = state.hosts?.get(id);
  return host?.session_key ?? host?.name ?? id;
}

/** Everything that waits for the person, the most urgent first. */
export function attention(state) {
  const now = Date.now();
  const found = [];
  for (const request of state.requests?.values() ?? []) {
    if (!request.closed_at) found.push({ key: request.request_id, kind: 'request', at: request.opened_at, text: request.title, detail: nameOfHost(state, request.agent_id), request });
  }
  for (const host of state.hosts?.values() ?? []) {
    if (host.state === 'limited') {
      found.push({ key: host.id, kind: 'limited', at: host.started_at, text: `${host.instance ?? host.backend}: the vendor refuses for usage`, detail: host.limited_until ? `goes on ${exact(new Date(host.limited_until).toISOString())}` : 'the vendor does not say until when; send it a prompt to try again', to: path('agents', host.id), label: 'Look' });
    }
  }
  for (const source of state.sources?.values() ?? []) {
    if (source.changed && source.state !== 'hidden') {
      const text = `${source.name} has changed ${source.changed === 1 ? 'a definition' : `${source.changed} definitions`} since it was approved`;
      found.push({ key: `changed ${source.name} ${source.from}`, kind: 'changed', at: source.since, text, detail: source.next_action, to: path('servers', '', { server: source.name }), label: 'Look' });
    }
    if (source.state === 'needs_auth' || source.state === 'pending_approval') {
      const text = source.state === 'needs_auth' ? `${source.name} needs a login` : `${source.name} waits for your approval`;
      found.push({ key: `${source.name} ${source.from}`, kind: source.state, at: source.since, text, detail: source.next_action, to: path('servers', '', { server: source.name }), label: 'Look' });
    }
  }
  for (const task of state.tasks.values()) {
    const isBad = task.status === 'failed' || task.status === 'expired';
    if (isBad && !isSeen(task.task_id) && now - Date.parse(task.closed_at ?? task.updated_at) < 7 * DAY) {
      found.push({ key: task.task_id, kind: task.status, at: task.closed_at ?? task.updated_at, text: task.title ?? task.prompt ?? task.task_id, detail: task.error ?? (task.exit_code ? `exit ${task.exit_code}` : task.signal), to: path('tasks', task.task_id), label: 'Look' });
    }
  }
  for (const message of state.messages.values()) {
    const to = path('messages', '', { message: message.id });
    if (message.state === 'undeliverable' || message.state === 'refused') {
      if (now - Date.parse(message.timestamp) < 7 * DAY) {
        found.push({ key: message.id, kind: message.state, at: message.timestamp, text: message.text, detail: `to ${nameOf(state, message.to_peer)}`, to, label: 'Look' });
      }
    } else if (['queued', 'offered', 'accepted'].includes(message.state) && now - Date.parse(message.timestamp) > OLD) {
      found.push({ key: message.id, kind: 'unread', at: message.timestamp, text: message.text, detail: `to ${nameOf(state, message.to_peer)}`, to, label: 'Look' });
    }
  }
  if (state.loaded.has('sessions')) {
    for (const record of state.ghap.values()) {
      if (record.status === 'active' && !state.sessions.has(record.session_id) && record.session_id !== 'default') {
        found.push({ key: record.id, kind: 'orphan', at: record.updated_at, text: record.goal, detail: 'its session is over', to: path('journal', record.id), label: 'Look' });
      }
    }
  }
  const rank = ['request', 'limited', 'needs_auth', 'pending_approval', 'changed', 'failed', 'expired', 'undeliverable', 'refused', 'unread', 'orphan'];
  return found.sort((one, other) => rank.indexOf(one.kind) - rank.indexOf(other.kind) || String(other.at).localeCompare(String(one.at)));
}
