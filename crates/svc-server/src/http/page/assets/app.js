// The shell: navigation, the state of the connection, and the view that the URL names.
import { html, render, useEffect, useState } from './lib.js';
import { api } from './api.js';
import { HELP, listen } from './keys.js';
import { VIEWS, path, useRoute } from './router.js';
import { follow, useStore } from './store.js';
import { duration, useClock } from './time.js';
import { Dialog } from './ui.js';
import { attention } from './attention.js';
import { Now } from './views/now.js';
import { Agents } from './views/agents.js';
import { Messages } from './views/messages.js';
import { Tasks } from './views/tasks.js';
import { Log } from './views/log.js';
import { Journal } from './views/journal.js';
import { Servers } from './views/servers.js';
import { Health } from './views/health.js';

const SHOWN = { now: Now, agents: Agents, messages: Messages, tasks: Tasks, log: Log, journal: Journal, servers: Servers, health: Health };
const name = (view) => view[0].toUpperCase() + view.slice(1);

function Connection() {
  const { connection, health } = useStore('connection', 'health');
  useClock();
  const texts = {
    connecting: 'connecting',
    live: 'live',
    away: `away for ${duration(Date.now() - connection.since)}`,
    'signed-out': 'signed out',
  };
  return html`<div class="connection"><span class=${`state ${{ live: 'good', away: 'wait', 'signed-out': 'bad' }[connection.status] ?? 'busy'}`}
    role="status">${texts[connection.status]}</span>
    ${health && html`<span class="muted">svc ${health.version}</span>`}</div>`;
}

function Navigation({ view }) {
  const state = useStore('tasks', 'messages', 'requests', 'ghap', 'sessions', 'hosts', 'sources', 'peers');
  useClock();
  const waiting = attention(state).length;
  return html`<nav aria-label="Views"><ul>${VIEWS.map((each) => html`<li><a href=${path(each)} aria-current=${each === view ? 'page' : undefined}>
    <span>${name(each)}</span>${each === 'now' && waiting > 0 && html`<span class="count" aria-label=${`${waiting} need you`}>${waiting}</span>`}</a></li>`)}</ul></nav>`;
}

function SignedOut() {
  return html`<main class="signed-out"><h1>Signed out</h1>
    <p>Run <code>svc open</code> in a terminal of the machine where the daemon runs, and follow its link. It signs this browser in for 12 hours.</p></main>`;
}

function App() {
  const route = useRoute();
  const { connection } = useStore('connection');
  const [isHelp, setHelp] = useState(false);
  useEffect(() => listen(() => setHelp(true)), []);
  useEffect(() => {
    document.title = `${name(route.view)} · svc`;
  }, [route.view]);
  if (connection.status === 'signed-out') return html`<${SignedOut} />`;
  const View = SHOWN[route.view];
  const signOut = () => api('DELETE', '/login').catch(() => {}).then(() => location.replace('/login'));
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById('main').focus(); }}>Skip to the view</a>
  <aside><a class="brand" href="/" aria-label="svc, to Now">svc</a><${Navigation} view=${route.view} />
    <footer><${Connection} /><div><button class="quiet" onClick=${() => setHelp(true)}>Keys <kbd>?</kbd></button>
    <button class="quiet" onClick=${signOut}>Sign out</button></div></footer></aside>
  <main id="main" tabindex="-1"><h1 class="sr">${name(route.view)}</h1><${View} key=${route.view} route=${route} /></main>
  ${isHelp && html`<${Dialog} title="Keys" close=${() => setHelp(false)}>
    <dl class="keys">${HELP.map(([keys, text]) => html`<div><dt><kbd>${keys}</kbd></dt><dd>${text}</dd></div>`)}</dl><//>`}`;
}

const root = document.getElementById('app');
root.textContent = '';
render(html`<${App} />`, root);
follow();
