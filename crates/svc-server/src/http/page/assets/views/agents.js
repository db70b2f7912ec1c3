// Agents: all of them. Of those that the daemon hosts the words as they come, and what a person tells them.
import { html, useEffect, useRef, useState } from '../lib.js';
import { get, post, query } from '../api.js';
import { OVER, nameOfHost } from '../attention.js';
import { CallInput, Result, callLine } from '../call.js';
import { go, path, setQuery } from '../router.js';
import { followStream, load, state, useStore } from '../store.js';
import { fits, hasLeft, team } from '../team.js';
import { Text, line } from '../text.js';
import { Time, clock, duration, exact, moment, useClock } from '../time.js';
import { Action, Answers, Asked, Choice, Dialog, Empty, Facts, Failure, FactLine, Loading, Search, State, useRead } from '../ui.js';

/** Entries that are kept of one agent. */
const KEPT = 2000;
/** Entries of the past that are read more at a time. */
const PAGE = 400;
/** Key of the entry that collects the output lines of a program. */
const LINES = 'lines';
/** Agents that a list shows at once. */
const SHOWN = 300;

/** What a status rests on. */
const KNOWN_BY = { hook: 'hooks of its client', registry: 'its client\'s own record', 'app-server': 'its app-server', plugin: 'the plugin in its client', host: 'its host', process: 'its process and its calls' };

const url = (id, act = '') => `/v1/hosts/${encodeURIComponent(id)}${act && `/${act}`}`;
const isOfTool = (entry) => entry.role === 'tool' || Boolean(entry.tool_name);
const isResult = (entry) => entry.tool_result !== undefined && entry.tool_input === undefined;

/** Entries with each call of a tool and what came of it as one. */
function rowsOf(entries) {
  const rows = [];
  const calls = new Map();
  for (const entry of entries) {
    if (!isOfTool(entry)) {
      rows.push({ entry });
      continue;
    }
    const call = entry.tool_use_id && calls.get(entry.tool_use_id);
    if (call && (isResult(entry) || !call.result)) {
      call.result = entry;
      continue;
    }
    const row = isResult(entry) ? { entry, result: entry } : { entry, result: entry.tool_result === undefined ? null : entry };
    if (entry.tool_use_id) calls.set(entry.tool_use_id, row);
    rows.push(row);
  }
  return rows;
}

function At({ at }) {
  return at ? html`<time class="at" datetime=${at} title=${exact(at)}>${clock(at)}</time>` : '';
}

/** A call of a tool in one row: what, how it went, how long it took. */
function ToolRow({ row, isLive }) {
  const { entry, result } = row;
  const isBad = Boolean(result?.is_error);
  const took = result && result !== entry ? Date.parse(result.timestamp) - Date.parse(entry.timestamp) : NaN;
  const mark = isBad ? ['bad-text', '✗', 'failed'] : result ? ['good-text', '✓', 'done'] : isLive ? ['muted', '…', 'under way'] : ['muted', '–', 'no result'];
  const output = result?.tool_result ?? (result && result !== entry ? result.content : undefined) ?? (entry.tool_result === undefined ? entry.content : undefined);
  return html`<details class=${`entry tool${isBad ? ' bad' : ''}`}><summary><${At} at=${entry.timestamp} /><span class=${mark[0]} title=${mark[2]}>${mark[1]}<span class="sr"> ${mark[2]}</span></span>
      <span class="what"><span class="strong"><bdi>${line(entry.tool_name ?? 'tool', 60)}</bdi></span> <bdi>${line(callLine('', entry.tool_input, entry.tool_summary), 200)}</bdi></span>
      <span class="muted took">${took >= 0 ? (took < 1000 ? `${took} ms` : duration(took)) : ''}</span></summary>
    <${CallInput} value=${entry.tool_input} />${output && html`<${Result} value=${output} />`}</details>`;
}

function Entry({ row, isLive }) {
  const { entry } = row;
  if (isOfTool(entry)) return html`<${ToolRow} row=${row} isLive=${isLive} />`;
  return html`<div class=${`entry ${entry.role ?? 'system'}${entry.is_error ? ' bad' : ''}`}><span class="role"><${At} at=${entry.timestamp} /> ${{ user: 'prompt', assistant: 'agent' }[entry.role] ?? 'system'}</span><div class="body"><${Text} value=${entry.content ?? ''} cut=${8000} /></div></div>`;
}

/** What was said, and what is said from now on. A longer past is read again, up to where the first one ended. */
function useHistory(id) {
  const [, show] = useState(0);
  const [turn, setTurn] = useState(0);
  const known = useRef({ entries: [], saying: new Map(), isLoading: true });
  useEffect(() => {
    const history = { entries: [], past: [], isLoading: true, error: null, hasEarlier: false, saying: new Map() };
    // What is being said, until the entry stands in the history.
    const say = ({ of, role, text }) => {
      const known = history.saying.get(of) ?? { role: role ?? 'assistant', content: '', key: `saying ${of}` };
      history.saying.set(of, { ...known, content: known.content + text });
    };
    const said = state.words.get(id);
    if (said?.of) say(said);
    known.current = history;
    const since = [];
    const waiting = [];
    let timer = null;
    let isWhole = false;
    let latest = null;
    const join = () => {
      history.entries = [...history.past, ...since];
    };
    const add = (event) => {
      // A feed that begins again may tell of something twice, and the daemon may be later than the host whose history was read.
      if (event.seq <= (latest ?? history.offset)) return;
      latest = event.seq ?? latest;
      if (event.kind === 'delta') say(event.data);
      // The lines of such a program are its words.
      else if (event.kind === 'output' && state.hosts?.get(id)?.backend === 'exec' && !event.data.encoding) say({ of: LINES, text: `${event.data.data}\n` });
      // Lines are events, and no feed tells them again.
      else if (event.kind === 'silence') [...history.saying.keys()].filter((of) => of !== LINES).forEach((of) => history.saying.delete(of));
      else if (event.kind === 'chat_entry') {
        if (event.data.chat_entry.role !== 'user') history.saying.clear();
        since.push({ ...event.data.chat_entry, offset: event.seq, timestamp: moment(event.data.chat_entry.timestamp) ?? event.at });
      } else if (event.kind === 'error') since.push({ role: 'system', content: event.data.error, is_error: true, offset: event.seq, timestamp: event.at });
      else if (event.kind === 'state' && event.data.state !== 'running') history.saying.clear();
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
      history.past = (page.entries ?? []).map((entry, index, all) => ({ ...entry, timestamp: moment(entry.timestamp), key: `past ${page.total - all.length + index}` }));
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
      waiting.forEach(add);
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
  }, [id, turn]);
  return [known.current, () => setTurn((n) => n + 1)];
}

/** The end of a conversation stays in sight until the person scrolls away. */
function History({ history, again, isLive }) {
  const box = useRef();
  const [follow, setFollow] = useState(true);
  const rows = rowsOf([...history.entries, ...history.saying.values()]);
  const last = rows[rows.length - 1];
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [rows.length, last?.entry.content, last?.result, follow]);
  return html`<div class="history" ref=${box} tabindex="0" role="log" aria-label="What was said" onScroll=${() => setFollow(box.current.scrollTop + box.current.clientHeight >= box.current.scrollHeight - 40)}>
    ${history.error ? html`<${Failure} text=${history.error.message} again=${again} />` : history.isLoading ? html`<${Loading} of="what was said" />` : !rows.length ? html`<${Empty} title="Nothing was said yet." />` : ''}
    ${history.hasEarlier && html`<${Action} run=${history.earlier}>Earlier<//>`}
    ${rows.map((row, index) => html`<${Entry} key=${row.entry.key ?? row.entry.offset ?? index} row=${row} isLive=${isLive} />`)}</div>`;
}

function Host({ id, host, requests }) {
  const [history, again] = useHistory(id);
  const [text, setText] = useState('');
  useClock();
  const isLive = !OVER.includes(host.state);
  const send = async (event, mode = 'queue') => {
    event?.preventDefault();
    if (!text.trim()) return;
    await post(url(id, 'send'), { input: text, mode });
    setText('');
  };
  return html`<article class="detail thread" aria-label="Agent"><header class="bar"><a class="back" href=${path('agents')}>Agents</a><h2><bdi>${line(nameOfHost(host), 80)}</bdi></h2><${State} of=${host.state} />
      ${isLive && html`<${Action} run=${() => post(url(id, 'interrupt'))}>Interrupt<//><${Action} ask="Stop this agent?" run=${() => post(url(id, 'stop'))}>Stop<//>`}</header>
    <${FactLine} of=${[['Instance', host.instance ?? host.backend], ['Machine', host.machine && line(host.machine, 80)], ['Folder', host.worktree && html`<code>${line(host.worktree, 200)}</code>`], ['Started', html`<${Time} at=${host.started_at} />`], ['Exit', host.exit_code ?? host.signal], ['Key', html`<code>${line(host.session_key ?? host.id, 120)}</code>`]]} />
    <${Facts} of=${[['Task', host.task && line(host.task, 200)], ['Error', host.error && html`<${Text} value=${host.error} cut=${400} />`]]} />
    <${History} history=${history} again=${again} isLive=${isLive} />
    ${requests.map((request) => html`<section class="need" key=${request.request_id} aria-label="What it asks"><${State} of="request" /><div class="what"><${Asked} request=${request} /></div><${Time} at=${request.opened_at} /><div class="do"><${Answers} request=${request} /></div></section>`)}
    ${isLive && html`<form class="compose" onSubmit=${send}><textarea rows="2" aria-label="Prompt" placeholder="Tell the agent what to do" value=${text} onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && send(event)}></textarea><${Action} class="primary" run=${() => send()} title="Ctrl+Enter: after its turn">Send<//>
      ${host.state === 'running' && html`<${Action} run=${() => send(null, 'steer')} title="Into its turn, now">Steer<//>`}</form>`}</article>`;
}

/** An agent that a person started in a terminal of its own. */
function Attended({ row }) {
  const { peer } = row;
  const waits = peer.waiting_for;
  return html`<article class="detail" aria-label="Agent"><header class="bar"><a class="back" href=${path('agents')}>Agents</a><h2><bdi>${line(row.name, 80)}</bdi></h2><${State} of=${row.state} />
      <a class="button" href=${path('messages', '', { peer: peer.peer_id })}>${row.unread ? `Messages, ${row.unread} unread` : 'Messages'}</a></header>
    <p class="muted">A person started this session in a terminal; messages reach it.</p>
    <${Facts} of=${[
      ['Waits for', waits && line([waits.kind, waits.tool?.name ?? waits.tool, waits.title].filter((each) => typeof each === 'string').join(': '), 300)],
      ['Known by', KNOWN_BY[peer.evidence] ?? peer.evidence],
      ['Trying', row.trying && html`<a href=${path('journal', row.trying.id)}><bdi>${line(row.trying.goal, 200)}</bdi></a>`],
      ['Last words', row.words && html`<${Text} value=${row.words} cut=${600} />`],
      ['Client', peer.backend], ['Machine', peer.machine && line(peer.machine, 80)], ['Folder', peer.path && html`<code>${line(peer.path, 200)}</code>`],
      ['Session', peer.session_id && html`<code>${line(peer.session_id, 80)}</code>`], ['Process', peer.pid],
      ['Last seen', html`<${Time} at=${peer.last_seen} />`], ['First seen', html`<${Time} at=${peer.registered_at} />`],
    ]} /></article>`;
}

/** The folder that an agent would most likely be started in: that of the latest. */
function likelyFolder(state) {
  const hosts = [...(state.hosts?.values() ?? [])].sort((one, other) => String(other.started_at).localeCompare(String(one.started_at)));
  const peers = [...state.peers.values()].sort((one, other) => String(other.last_seen).localeCompare(String(one.last_seen)));
  return hosts[0]?.worktree ?? peers.find((peer) => peer.path)?.path ?? '';
}

function Start({ state, close }) {
  const instances = [...state.instances.values()].sort((one, other) => Number(other.callable) - Number(one.callable));
  const [wish, set] = useState({ instance: instances[0]?.instance ?? '', cwd: likelyFolder(state), name: '', prompt: '' });
  const chosen = state.instances.get(wish.instance);
  const field = (name, label, more) => html`<label class="field"><span>${label}</span><input value=${wish[name]} onInput=${(event) => set({ ...wish, [name]: event.target.value })} ...${more} /></label>`;
  const start = async () => {
    const body = Object.fromEntries(Object.entries(wish).filter(([, value]) => value));
    const host = await post('/v1/hosts', body);
    await load('hosts');
    close();
    go(path('agents', host.id));
  };
  return html`<${Dialog} title="Start an agent" close=${close}><div class="form"><${Choice} label="Instance" value=${wish.instance} set=${(instance) => set({ ...wish, instance })} options=${instances.map((each) => [each.instance, `${each.instance}${each.callable ? '' : ` (${each.status === 'binary-missing' ? 'not installed' : each.status})`}`])} />
    ${chosen && !chosen.callable && html`<p class="bad-text">${line(chosen.reason ?? `It is ${chosen.status}.`, 300)}</p>`}
    ${field('cwd', 'Folder', { placeholder: '/home/you/project' })}${field('name', 'Name', { placeholder: 'main' })}
    <label class="field"><span>Prompt</span><textarea rows="4" value=${wish.prompt} onInput=${(event) => set({ ...wish, prompt: event.target.value })}></textarea></label><${Action} class="primary" run=${start} disabled=${!chosen?.callable}>Start<//></div><//>`;
}

function Instances({ instances }) {
  if (!instances.size) {
    return html`<${Empty} title="No instance is configured.">A table <code>[agents.NAME]</code> in <code>config.toml</code> is one, and so is each of <code>claude</code>, <code>codex</code>, <code>gemini</code> and <code>opencode</code> on the daemon's PATH.<//>`;
  }
  const rows = [...instances.values()];
  return html`<details class="instances"><summary>What can be started: ${rows.filter((each) => each.callable).map((each) => line(each.instance, 40)).join(', ') || 'nothing'}</summary>
    <ul class="plain">${rows.map((each) => html`<li><span class="strong">${line(each.instance, 60)}</span> <span class="muted">${each.backend}</span> <${State} of=${each.status} /> ${each.reason && html`<span class="muted">${line(each.reason, 200)}</span>`}</li>`)}</ul></details>`;
}

export function Agents({ route }) {
  const state = useStore('hosts', 'instances', 'requests', 'peers', 'ghap', 'messages');
  const [isStarting, setStarting] = useState(false);
  const [find, setFind] = useState('');
  useClock();
  const { hosts, instances } = state;
  const isWhole = route.query.get('left') === 'yes';
  const rows = team(state, true);
  const known = rows.find((row) => row.key === route.id);
  const one = useRead(() => (route.id && hosts && !known && route.id.startsWith('ag_') ? get(url(route.id)) : Promise.resolve(null)), [route.id, !!known, !!hosts]);
  const host = known?.host ?? one.value;
  if (!state.loaded.has('hosts') || !state.loaded.has('peers')) {
    const failure = state.failures.get('hosts') ?? state.failures.get('peers');
    return failure ? html`<${Failure} text=${failure} again=${() => ['hosts', 'peers'].forEach(load)} />` : html`<${Loading} of="agents" />`;
  }
  const left = rows.filter(hasLeft).length;
  const shown = rows.filter((row) => (find ? fits(row, find) : isWhole || row.key === route.id || !hasLeft(row)));
  const canStart = [...(instances?.values() ?? [])].some((each) => each.callable);
  // No event tells that a program was installed or removed.
  const start = () => {
    load('instances');
    setStarting(true);
  };
  return html`<div class=${`split${route.id ? ' has-detail' : ''}`}><section class="index" aria-label="Agents"><header class="bar"><h2>Agents</h2><button class="primary" onClick=${start} disabled=${!instances?.size} title=${canStart ? '' : 'No agent program is installed'}>Start one</button>
      ${rows.length > 0 && html`<${Search} value=${find} set=${setFind} label="Search agents" />`}<span class="muted">${find ? `${shown.length} of ${rows.length}` : rows.length - left}</span>
      ${left > 0 && !find && html`<label class="switch"><input type="checkbox" checked=${isWhole} onChange=${(event) => setQuery({ left: event.target.checked ? 'yes' : '' })} /> ${left} who left</label>`}</header>
    ${!rows.length ? html`<${Empty} title="No agent has been here yet."><code>svc install</code> wires the agents of your terminals, which then show here by themselves; <code>svc agent start</code>, or the button above, starts one that svc hosts.<//>`
      : !shown.length ? html`<${Empty} title=${find ? 'No agent matches.' : 'Nobody is here now.'} />`
      : html`<ul class="threads">${shown.slice(0, SHOWN).map((row) => html`<li key=${row.key} data-row><a href=${path('agents', row.key, Object.fromEntries(route.query))} aria-current=${row.key === route.id ? 'true' : undefined}><span class="who"><bdi>${line(row.name, 60)}</bdi> <span class="muted">${row.host ? 'hosted' : 'terminal'}</span></span><${State} of=${row.state} />
          <span class="muted last"><bdi>${line(row.words ?? row.trying?.goal ?? row.path ?? row.kind, 120)}</bdi></span><span class="counts">${row.unread > 0 && html`<span>${row.unread} unread</span>`}<${Time} at=${row.since} /></span></a></li>`)}</ul>
        ${shown.length > SHOWN && html`<p class="muted">and ${shown.length - SHOWN} more: search for them</p>`}`}
    ${instances && html`<${Instances} instances=${instances} />`}</section>
    ${host ? html`<${Host} key=${host.id} id=${host.id} host=${host} requests=${[...(state.requests?.values() ?? [])].filter((each) => each.agent_id === host.id && !each.closed_at)} />`
      : known ? html`<${Attended} key=${known.key} row=${known} />`
      : route.id && one.error ? html`<section class="detail"><${Failure} text=${one.error.message} again=${one.again} /></section>`
      : route.id && !one.isLoading ? html`<section class="detail" aria-label="Agent"><${Empty} title="There is no such agent." /></section>` : ''}
    ${isStarting && html`<${Start} state=${state} close=${() => setStarting(false)} />`}</div>`;
}
