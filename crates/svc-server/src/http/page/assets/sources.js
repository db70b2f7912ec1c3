// Child MCP servers: what a person does about one, wherever it is shown.
import { html, useState } from './lib.js';
import { get, post, query } from './api.js';
import { load } from './store.js';
import { Text, line } from './text.js';
import { Action, State } from './ui.js';

// A project's server is the one that a session in its file's folder has.
export const sourceUrl = (source, act = '', more = {}) => query(`/v1/sources/${encodeURIComponent(source.name)}${act && `/${act}`}`, { project: source.project && source.from.replace(/\/[^/]*$/, ''), ...more });

/** A login in the person's browser; that it is over shows as a change of the server's state. */
export function Login({ source }) {
  const [page, setPage] = useState('');
  return html`<span class="answers"><${Action} class="primary" run=${() => post(sourceUrl(source, 'login')).then((reply) => setPage(reply.authorization_url))}>Log in<//>
    ${/^https?:/.test(page) && html`<a href=${page} target="_blank" rel="noopener noreferrer">${line(page, 2000)}</a>`}</span>`;
}

/** What was not approved, shown before it can be. */
function Shown({ waiting }) {
  return html`<ul class="changes">${waiting.changes.map((each) => html`<li key=${`${each.kind} ${each.name}`}><b>${each.kind} <bdi>${line(each.name, 100)}</bdi></b> (${each.before ? 'changed' : 'new'})
    <pre class="data" tabindex="0"><${Text} value=${JSON.stringify(each.after, null, 2)} cut=${4000} /></pre></li>`)}</ul>`;
}

/** A project's file whose servers run only after a person has seen and approved them. */
export function FileApproval({ sources }) {
  const [waiting, setWaiting] = useState(null);
  const [source] = sources;
  const from = { from: source.from };
  const approve = () => post(sourceUrl(source, 'approve', from), { digest: waiting.digest }).then(() => load('sources')).finally(() => setWaiting(null));
  if (!waiting) return html`<${Action} run=${() => get(sourceUrl(source, 'changes', from)).then(setWaiting)}>Approve<//>`;
  return html`<div class="approval"><${Shown} waiting=${waiting} /><p class="answers"><span>Run ${waiting.changes.length === 1 ? 'this server' : `these ${waiting.changes.length} servers`} for sessions in this project?</span>
    <${Action} class="danger" run=${approve}>Yes<//><button onClick=${() => setWaiting(null)}>No</button></p></div>`;
}

/** Definitions that are not those that were approved. */
export function Changes({ source }) {
  const [waiting, setWaiting] = useState(null);
  const read = () => get(sourceUrl(source, 'changes')).then(setWaiting);
  const approve = () => post(sourceUrl(source, 'approve'), { digest: waiting.digest }).then(() => load('sources'));
  return html`<p><${State} of="changed" /> ${source.changed === 1 ? 'One definition is' : `${source.changed} definitions are`} not as approved. <${Action} run=${read}>${waiting ? 'Read again' : 'Show changes'}<//></p>
    ${waiting && html`<${Shown} waiting=${waiting} /><p class="answers"><${Action} class="primary" ask="Approve these definitions?" run=${approve}>Approve<//></p>`}`;
}
