// Agents that the daemon hosts: their words as they come, and what a person tells them.
import { html, useEffect, useRef, useState } from '../lib.js';
import { get, post, query } from '../api.js';
import { path, setQuery } from '../router.js';
import { followStream, load, useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time } from '../time.js';
import { Action, Answers, Choice, Dialog, Empty, Facts, Failure, Loading, State, useRead } from '../ui.js';

const OVER = ['done', 'error', 'lost'];
/** Entries that are kept of one agent. */
const KEPT = 2000;
/** Entries of the past that are read more at a time. */
const PAGE = 400;

const url = (id, act = '') => `/v1/hosts/${encodeURIComponent(id)}${act && `/${act}`}`;

/** A change of a text, line by line, if this is one. */
function Diff({ text }) {
  return html`<pre class="diff" tabindex="0">${text.split('\n').map((each) => html`<span class=${each.startsWith('+') && !each.startsWith('+++') ? 'plus' : each.startsWith('-') && !each.startsWith('---') ? 'minus' : each.startsWith('@@') ? 'at' : ''}><${Text} value=${each} />${'\n'}</span>`)}</pre>`;
}

const isDiff = (text) => typeof text === 'string' && /^(diff --git|--- |@@ )/m.test(text) && /^[+-]/m.test(text);

function edit(input) {
  const before = input?.old_string;
  const after = input?.new_string;
  if (typeof before !== 'string' || typeof after !== 'string') return null;
  return [...before.split('\n').map((each) => `-${each}`), ...after.split('\n').map((each) => `+${each}`)].join('\n');
}

function Entry({ entry }) {
  if (entry.role === 'tool' || entry.tool_name) {
    const change = edit(entry.tool_input);
    const result = entry.tool_result ?? entry.content;
    return html`<details class=${`entry tool${entry.is_error ? ' bad' : ''}`}><summary><span class="strong">${line(entry.tool_name ?? 'tool', 60)}</span> <span class="muted"><bdi>${line(entry.tool_summary ?? '', 160)}</bdi></span>${entry.is_error && html` <span class="bad-text">failed</span>`}</summary>
      ${change ? html`<${Diff} text=${change} />` : entry.tool_input !== undefined && html`<pre tabindex="0"><${Text} value=${JSON.stringify(entry.tool_input, null, 2)} /></pre>`}
      ${result && (isDiff(result) ? html`<${Diff} text=${result} />` : html`<pre tabindex="0"><${Text} value=${result} /></pre>`)}</details>`;
  }
  return html`<div class=${`entry ${entry.role ?? 'system'}`}><span class="role">${entry.role ?? 'system'}</span><div class="body"><${Text} value=${entry.content ?? ''} cut=${8000} /></div></div>`;
}

/** What was said, and what is said from now on. Entries bear no position, so a longer past is read again up to where the first one ended. */
function useHistory(id) {
  const [, show] = useState(0);
  const known = useRef({ entries: [], isLoading: true });
  useEffect(() => {
    const history = { entries: [], past: [], isLoading: true, error: null, hasEarlier: false };
    known.current = history;
    const since = [];
    const waiting = [];
    let timer = null;
    let isWhole = false;
    const join = () => {
      history.entries = [...history.past, ...since];
    };
    const add = (event) => {
      if (event.kind === 'chat_entry') since.push({ ...event.data.chat_entry, offset: event.seq });
      else if (event.kind === 'error') since.push({ role: 'system', content: event.data.error, is_error: true, offset: event.seq });
      else return;
      // Who asked for what was earlier keeps it.
      if (!isWhole && since.length > KEPT) {
        history.hasEarlier = true;
        history.past = [];
        history.offset = since[199].offset;
        since.splice(0, 200);
      }
      timer ??= setTimeout(() => {
        timer = null;
        join();
        show((n) => n + 1);
      }, 100);
    };
    const take = (page) => {
      history.past = (page.entries ?? []).map((entry, index, all) => ({ ...entry, key: `past ${page.total - all.length + index}` }));
      history.hasEarlier = page.total > history.past.length;
    };
    const leave = followStream(`agent/${id}`, (event) => (history.isLoading ? waiting.push(event) : add(event)));
    get(query(url(id, 'history'), { limit: PAGE, include_tools: true })).then((page) => {
      history.offset = page.offset;
      take(page);
    }, (error) => {
      history.error = error;
    }).finally(() => {
      history.isLoading = false;
      waiting.filter((event) => !(event.seq <= history.offset)).forEach(add);
      join();
      show((n) => n + 1);
    });
    history.earlier = async () => {
      isWhole = true;
      take(await get(query(url(id, 'history'), { limit: history.past.length + PAGE, before: history.offset + 1, include_tools: true })));
      join();
      show((n) => n + 1);
    };
    return () => {
      clearTimeout(timer);
      leave();
    };
  }, [id]);
  return known.current;
}

function Host({ id, host, requests }) {
  const history = useHistory(id);
  const [text, setText] = useState('');
  const end = useRef();
  const box = useRef();
  const [follow, setFollow] = useState(true);
  const last = history.entries[history.entries.length - 1];
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [history.entries.length, last?.content, follow]);
  const isLive = !OVER.includes(host.state);
  const send = async (event, mode = 'queue') => {
    event?.preventDefault();
    if (!text.trim()) return;
    await post(url(id, 'send'), { input: text, mode });
    setText('');
  };
  return html`<article class="detail thread" aria-label="Agent"><header class="bar"><a class="back" href=${path('agents')}>Agents</a><h2><bdi>${line(host.session_key ?? host.id, 80)}</bdi></h2><${State} of=${host.state} />
      ${isLive && html`<${Action} run=${() => post(url(id, 'interrupt'))}>Interrupt<//><${Action} ask="Stop this agent?" run=${() => post(url(id, 'stop'))}>Stop<//>`}</header>
    <${Facts} of=${[['Instance', host.instance ?? host.backend], ['Task', host.task && line(host.task, 200)], ['Folder', host.worktree && html`<code>${line(host.worktree, 200)}</code>`], ['Started', html`<${Time} at=${host.started_at} />`], ['Exit', host.exit_code ?? host.signal], ['Error', host.error && html`<${Text} value=${host.error} />`]]} />
    <div class="history" ref=${box} tabindex="0" role="log" aria-label="What was said" onScroll=${() => setFollow(box.current.scrollTop + box.current.clientHeight >= box.current.scrollHeight - 40)}>
      ${history.error ? html`<${Failure} text=${history.error.message} />` : history.isLoading ? html`<${Loading} of="what was said" />` : !history.entries.length ? html`<${Empty} title="Nothing was said yet." />` : ''}
      ${history.hasEarlier && html`<${Action} run=${history.earlier}>Earlier<//>`}
      ${history.entries.map((entry, index) => html`<${Entry} key=${entry.key ?? entry.offset ?? index} entry=${entry} />`)}<div ref=${end}></div></div>
 ${requests.map((request) => html`<section class="need" key=${request.request_id} aria-label="What it asks"><${State} of="request" /><div class="what"><${Text} value=${request.title} cut=${300} /></div><${Time} at=${request.opened_at} /><div class="do"><${Answers} request=${request} /></div></section>`)}
    ${isLive && html`<form class="compose" onSubmit=${send}><textarea rows="2" aria-label="Prompt" placeholder="Tell the agent what to do" value=${text} onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && send(event)}></textarea><${Action} class="primary" run=${() => send()} title="Ctrl+Enter: after its turn">Send<//>
      ${host.state === 'running' && html`<${Action} run=${() => send(null, 'steer')} title="Into its turn, now">Steer<//>`}</form>`}</article>`;
}

function Start({ instances, close }) {
  const [wish, set] = useState({ instance: [...instances.keys()][0] ?? '', cwd: '', name: '', prompt: '' });
  const field = (name, label, more) => html`<label class="field"><span>${label}</span><input value=${wish[name]} onInput=${(event) => set({ ...wish, [name]: event.target.value })} ...${more} /></label>`;
  const start = async () => {
    const body = Object.fromEntries(Object.entries(wish).filter(([, value]) => value));
    const host = await post('/v1/hosts', body);
    await load('hosts');
    close();
    setQuery({});
    return host;
  };
  return html`<${Dialog} title="Start an agent" close=${close}><div class="form"><${Choice} label="Instance" value=${wish.instance} set=${(instance) => set({ ...wish, instance })} options=${[...instances.values()].map((each) => [each.instance, `${each.instance}${each.callable ? '' : ` (${each.status})`}`])} />
    ${field('cwd', 'Folder', { placeholder: '/home/you/project' })}${field('name', 'Name')}
    <label class="field"><span>Prompt</span><textarea rows="4" value=${wish.prompt} onInput=${(event) => set({ ...wish, prompt: event.target.value })}></textarea></label><${Action} class="primary" run=${start}>Start<//></div><//>`;
}

export function Agents({ route }) {
  const state = useStore('hosts', 'instances', 'requests');
  const [isStarting, setStarting] = useState(false);
  const { hosts, instances } = state;
  const known = hosts?.get(route.id);
  const one = useRead(() => (route.id && hosts && !known ? get(url(route.id)) : Promise.resolve(null)), [route.id, !!known]);
  const host = known ?? one.value;
  if (!state.loaded.has('hosts')) return state.failures.has('hosts') ? html`<${Failure} text=${state.failures.get('hosts')} again=${() => load('hosts')} />` : html`<${Loading} of="agents" />`;
  if (!hosts) {
    return html`<section aria-label="Agents"><header class="bar"><h2>Agents</h2></header><${Empty} title="This daemon hosts no agents.">Agents that you start in a terminal show under <a href="/">Now</a> once <code>svc install</code> has wired them, and their words under <a href=${path('messages')}>Messages</a>.<//></section>`;
  }
  const rows = [...hosts.values()].sort((one_, other) => OVER.includes(one_.state) - OVER.includes(other.state) || String(other.started_at).localeCompare(String(one_.started_at)));
  return html`<div class=${`split${route.id ? ' has-detail' : ''}`}><section class="index" aria-label="Agents"><header class="bar"><h2>Agents</h2><button onClick=${() => setStarting(true)} disabled=${!instances?.size}>Start one</button><span class="muted">${rows.length}</span></header>
    ${!rows.length ? html`<${Empty} title="No agent has been started here."><code>svc agent start</code> starts one in the folder that you are in.<//>`
      : html`<ul class="threads">${rows.map((each) => html`<li key=${each.id} data-row><a href=${path('agents', each.id)} aria-current=${each.id === route.id ? 'true' : undefined}><span class="who"><bdi>${line(each.session_key ?? each.id, 60)}</bdi></span><${State} of=${each.state} /><span class="muted last"><bdi>${line(each.task ?? each.description ?? each.instance ?? each.backend, 120)}</bdi></span><${Time} at=${each.started_at} /></a></li>`)}</ul>`}
    ${instances && html`<h3>Instances</h3>${instances.size ? html`<ul class="plain">${[...instances.values()].map((each) => html`<li><span class="strong">${line(each.instance, 60)}</span> <span class="muted">${each.backend}</span> <${State} of=${each.status} /> ${each.reason && html`<span class="muted">${line(each.reason, 200)}</span>`}</li>`)}</ul>` : html`<${Empty} title="No instance is configured.">A table <code>[agents.NAME]</code> in <code>config.toml</code> is one, and so is each of <code>claude</code>, <code>codex</code>, <code>gemini</code> and <code>opencode</code> on the daemon's PATH.<//>`}`}</section>
    ${host ? html`<${Host} key=${host.id} id=${host.id} host=${host} requests=${[...(state.requests?.values() ?? [])].filter((each) => each.agent_id === host.id && !each.closed_at)} />` : route.id && one.error ? html`<section class="detail"><${Failure} text=${one.error.message} again=${one.again} /></section>` : ''}
    ${isStarting && html`<${Start} instances=${instances} close=${() => setStarting(false)} />`}</div>`;
}
