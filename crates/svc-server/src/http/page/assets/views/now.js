// Now: what needs a person, then who is here.
import { html, useState } from '../lib.js';
import { post } from '../api.js';
import { attention } from '../attention.js';
import { path, setQuery } from '../router.js';
import { load, see, useStore } from '../store.js';
import { fits, hasLeft, team } from '../team.js';
import { line } from '../text.js';
import { Time, useClock } from '../time.js';
import { FileApproval, Login, sourceUrl } from '../sources.js';
import { Action, Answers, Asked, Empty, Failure, Loading, Search, State } from '../ui.js';

/** The one action of a thing that needs a person. */
function Do({ item }) {
  if (item.request) return html`<${Answers} request=${item.request} />`;
  if (item.kind === 'needs_auth') return html`<${Login} source=${item.source} />`;
  if (item.kind === 'pending_approval') return html`<${FileApproval} sources=${item.sources} />`;
  if (item.kind === 'failed_server') return html`<${Action} run=${() => post(sourceUrl(item.source, 'reconnect')).then(() => load('sources'))}>Start again<//>`;
  if (item.kind === 'undeliverable' || item.kind === 'refused') return html`<button onClick=${() => see([item.key])}>Mark as seen</button>`;
  if (item.record) return html`<${Action} ask="Give this record up?" run=${() => post(`/v1/ghap/${encodeURIComponent(item.key)}/abandon`).then(() => load('ghap'))}>Give up<//>`;
  return html`<a class="button" href=${item.to}>${item.label}</a>`;
}

function What({ item }) {
  if (item.request) return html`<p class="muted"><a href=${item.to}>${line(item.who, 80)}</a></p><${Asked} request=${item.request} />`;
  if (item.kind === 'pending_approval') {
    return html`<p><bdi>${line(item.text, 300)}</bdi></p><ul class="runs">${item.sources.map((source) => html`<li><span class="strong"><bdi>${line(source.name, 60)}</bdi></span> <code><bdi>${line(source.runs ?? '', 400)}</bdi></code></li>`)}</ul>`;
  }
  return html`<a class="subject" href=${item.to}><bdi>${line(item.text, 300)}</bdi></a>${item.detail && html` <span class="muted">${line(item.detail, 300)}</span>`}`;
}

function Need({ item }) {
  return html`<li class="need" data-row><${State} of=${item.kind} />
    <div class="what"><${What} item=${item} /></div>
    <${Time} at=${item.at} />
    <div class="do"><${Do} item=${item} /></div></li>`;
}

/** Where somebody runs, if the team has several machines. */
const machineOf = (row) => row.host?.machine ?? row.peer?.machine;

function Row({ row, hasMachines }) {
  return html`<tr data-row><th scope="row"><a href=${row.to}><bdi>${line(row.name, 60)}</bdi></a> <span class="muted">${line(row.kind, 24)}</span></th>
    <td><${State} of=${row.state} /></td>
    ${hasMachines && html`<td><bdi>${line(machineOf(row) ?? '', 40)}</bdi></td>`}
    <td class=${`wide${row.trying ? '' : ' none'}`}>${row.trying ? html`<a href=${path('journal', row.trying.id)}><bdi>${line(row.trying.goal, 140)}</bdi></a>` : html`<span class="muted">–</span>`}</td>
    <td class=${`wide${row.words ? '' : ' none'}`}>${row.words ? html`<bdi>${line(row.words, 140)}</bdi>` : html`<span class="muted">–</span>`}</td>
    <td class="number"><${Time} at=${row.since} /></td>
    <td class=${`number${row.unread ? ' unread' : ' none'}`}>${row.unread ? html`<a href=${row.peer ? path('messages', '', { peer: row.peer.peer_id }) : row.to}>${row.unread}</a>` : html`<span class="muted">0</span>`}</td></tr>`;
}

export function Now({ route }) {
  const state = useStore('peers', 'sessions', 'ghap', 'tasks', 'messages', 'requests', 'hosts', 'sources');
  const [find, setFind] = useState('');
  useClock();
  const isWhole = route.query.get('left') === 'yes';
  const all = attention(state);
  const needs = find ? all.filter((item) => `${item.kind} ${item.text} ${item.detail ?? ''} ${item.who ?? ''}`.toLowerCase().includes(find.toLowerCase())) : all;
  const rows = team(state);
  const here = rows.filter((row) => !hasLeft(row));
  const shown = find ? rows.filter((row) => fits(row, find)) : isWhole ? rows : here;
  const ended = all.filter((item) => ['failed_task', 'expired_task', 'undeliverable', 'refused'].includes(item.kind)).map((item) => item.key);
  const left = rows.length - here.length;
  const hasMachines = rows.some(machineOf);
  const isLoaded = state.loaded.has('peers');
  const failure = state.failures.get('peers');
  return html`<section aria-labelledby="needs"><header class="bar"><h2 id="needs">Needs you</h2>
      <${Search} value=${find} set=${setFind} label="Search this view" />
      ${ended.length > 1 && html`<button class="quiet" onClick=${() => see(ended)}>Mark ${ended.length} that ended badly as seen</button>`}</header>
    ${needs.length
      ? html`<ul class="needs">${needs.slice(0, 60).map((item) => html`<${Need} key=${item.key} item=${item} />`)}</ul>
        ${needs.length > 60 && html`<p class="muted">and ${needs.length - 60} more</p>`}`
      : html`<p class="fine">${!isLoaded ? 'Looking …' : find && all.length ? 'Nothing that needs you matches.' : 'Nothing needs you.'}</p>`}</section>
  <section aria-labelledby="here"><header class="bar"><h2 id="here">Who is here</h2>
      <span class="muted">${isLoaded && (find ? `${shown.length} of ${rows.length}` : here.length)}</span>
      ${left > 0 && !find && html`<label class="switch"><input type="checkbox" checked=${isWhole} onChange=${(event) => setQuery({ left: event.target.checked ? 'yes' : '' })} /> ${left} who left</label>`}</header>
    ${failure ? html`<${Failure} text=${failure} again=${() => load('peers')} />`
      : !isLoaded ? html`<${Loading} of="agents" />`
      : !rows.length ? html`<${Empty} title="No agent has been here yet."><code>svc install</code> wires Claude Code, Codex, Gemini and opencode; each session then shows here by itself.<//>`
      : !shown.length ? html`<${Empty} title=${find ? 'No agent matches.' : 'Nobody is here now.'} />`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Table of who is here"><table class="team"><thead><tr><th scope="col">Name</th><th scope="col">State</th>${hasMachines && html`<th scope="col">Machine</th>`}<th scope="col">Trying</th><th scope="col">Last words</th><th scope="col" class="number">Last seen</th><th scope="col" class="number">Unread</th></tr></thead>
        <tbody>${shown.map((row) => html`<${Row} key=${row.key} row=${row} hasMachines=${hasMachines} />`)}</tbody></table></div>`}</section>`;
}
