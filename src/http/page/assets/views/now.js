// Now: what needs a person, then who is here.
import { html } from '../lib.js';
import { attention, nameOf } from '../attention.js';
import { path } from '../router.js';
import { load, see, useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time, useClock } from '../time.js';
import { Answers, Empty, Failure, Loading, State } from '../ui.js';

const ORDER = ['requires_action', 'limited', 'running', 'starting', 'online', 'busy', 'idle', 'stopping', 'offline', 'done', 'error', 'lost'];

function Need({ item }) {
  return html`<li class="need" data-row><${State} of=${item.kind} />
    <div class="what"><${Text} value=${item.text} cut=${300} />${item.detail && html` <span class="muted">${line(item.detail, 200)}</span>`}</div>
    <${Time} at=${item.at} />
    <div class="do">${item.request ? html`<${Answers} request=${item.request} />` : html`<a class="button" href=${item.to}>${item.label}</a>`}</div></li>`;
}

/** One row for each agent that we host, and each peer that is no such agent. */
function team(state) {
  const trying = new Map();
  for (const record of state.ghap.values()) if (record.status === 'active') trying.set(record.session_id, record);
  const unread = new Map();
  const words = new Map();
  for (const message of state.messages.values()) {
    if (['accepted', 'queued', 'offered'].includes(message.state)) unread.set(message.to_peer, (unread.get(message.to_peer) ?? 0) + 1);
    const known = words.get(message.from_peer);
    if (!known || known.timestamp < message.timestamp) words.set(message.from_peer, message);
  }
  const rows = [];
  const hosted = new Set();
  for (const host of state.hosts?.values() ?? []) {
    if (['done', 'error', 'lost'].includes(host.state)) continue;
    hosted.add(host.session_key).add(host.session_id);
    rows.push({ key: host.id, name: host.session_key ?? host.id, kind: host.instance ?? host.backend, state: host.state, trying: trying.get(host.session_key), words: host.task, since: host.started_at, unread: 0, to: path('agents', host.id) });
  }
  for (const peer of state.peers.values()) {
    if (peer.peer_id === 'operator' || hosted.has(peer.session_id)) continue;
    rows.push({ key: peer.peer_id, name: peer.display_name, kind: peer.backend, state: peer.status, trying: trying.get(peer.session_id), words: words.get(peer.peer_id)?.text, since: peer.last_seen, unread: unread.get(peer.peer_id) ?? 0, to: path('messages', '', { peer: peer.peer_id }), path: peer.path });
  }
  return rows.sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state) || one.name.localeCompare(other.name));
}

function Row({ row }) {
  return html`<tr data-row><th scope="row"><a href=${row.to}>${line(row.name, 60)}</a> <span class="muted">${line(row.kind, 24)}</span></th>
    <td><${State} of=${row.state} /></td>
    <td class=${`wide${row.trying ? '' : ' none'}`}>${row.trying ? html`<a href=${path('journal', row.trying.id)}>${line(row.trying.goal, 140)}</a>` : html`<span class="muted">–</span>`}</td>
    <td class=${`wide${row.words ? '' : ' none'}`}>${row.words ? line(row.words, 140) : html`<span class="muted">–</span>`}</td>
    <td class="number"><${Time} at=${row.since} /></td>
    <td class=${`number${row.unread ? ' unread' : ' none'}`}>${row.unread || html`<span class="muted">0</span>`}</td></tr>`;
}

export function Now() {
  const state = useStore('peers', 'sessions', 'ghap', 'tasks', 'messages', 'requests', 'hosts', 'sources');
  useClock();
  const needs = attention(state);
  const rows = team(state);
  const failed = needs.filter((item) => item.kind === 'failed' || item.kind === 'expired').map((item) => item.key);
  const here = rows.filter((row) => row.state !== 'offline');
  const isLoaded = state.loaded.has('peers');
  const failure = state.failures.get('peers');
  return html`<section aria-labelledby="needs"><header class="bar"><h2 id="needs">Needs you</h2>
      ${failed.length > 1 && html`<button class="quiet" onClick=${() => see(failed)}>Mark ${failed.length} failed tasks as seen</button>`}</header>
    ${needs.length
      ? html`<ul class="needs">${needs.slice(0, 60).map((item) => html`<${Need} key=${item.key} item=${item} />`)}</ul>
        ${needs.length > 60 && html`<p class="muted">and ${needs.length - 60} more</p>`}`
      : html`<p class="fine">${isLoaded ? 'Nothing needs you.' : 'Looking …'}</p>`}</section>
  <section aria-labelledby="here"><header class="bar"><h2 id="here">Who is here</h2>
      <span class="muted">${isLoaded && `${here.length} of ${rows.length}`}</span></header>
    ${failure ? html`<${Failure} text=${failure} again=${() => load('peers')} />`
      : !isLoaded ? html`<${Loading} of="peers" />`
      : !rows.length ? html`<${Empty} title="No agent has been here yet."><code>svc install</code> wires Claude Code, Codex, Gemini and opencode; each session then shows here by itself.<//>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Table of who is here"><table class="team"><thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Trying</th><th scope="col">Last words</th><th scope="col" class="number">Heard of</th><th scope="col" class="number">Unread</th></tr></thead>
        <tbody>${rows.map((row) => html`<${Row} key=${row.key} row=${row} />`)}</tbody></table></div>`}</section>`;
}

export { nameOf };
