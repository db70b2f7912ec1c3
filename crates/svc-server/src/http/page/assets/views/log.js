// Log: the feed of all events. A position is a link.
import { html, useEffect, useMemo, useRef, useState } from '../lib.js';
import { get, query } from '../api.js';
import { nameOf, nameOfHost } from '../attention.js';
import { callLine } from '../call.js';
import { List } from '../list.js';
import { go, path, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { Text, line } from '../text.js';
import { clock, exact } from '../time.js';
import { Choice, Empty, Facts, Failure, Loading, Search, useRead } from '../ui.js';

const FAMILIES = [['', 'everything'], ['task/', 'tasks'], ['peer/', 'deliveries'], ['session/', 'sessions, journal'], ['team', 'team'], ['agent/', 'agents'], ['mcp/', 'MCP'], ['daemon', 'daemon']];

const ROLES = { user: 'prompt', assistant: 'says', tool: 'tool', system: 'system' };
const STATES = { requires_action: 'waits for an answer', limited: 'is refused for usage', running: 'works', idle: 'is idle', starting: 'starts', stopping: 'is being stopped', done: 'is done', error: 'has failed', lost: 'is lost' };

/** What a line of an agent's own protocol is about, without its JSON. */
function protocolLine(text) {
  let message;
  try {
    message = JSON.parse(text);
  } catch {
    return text;
  }
  if (!message || typeof message !== 'object') return text;
  const update = message.params?.update;
  const said = update?.content?.text ?? message.params?.delta ?? message.params?.item?.text ?? message.message?.content?.map?.((part) => part.text ?? part.name ?? part.type).join(' ');
  const name = update?.sessionUpdate ?? message.method ?? message.subtype ?? message.type ?? (message.error ? 'error' : message.result !== undefined ? 'answer' : 'message');
  const detail = said ?? update?.title ?? message.params?.toolCall?.title ?? message.error?.message ?? message.result?.stopReason;
  return [String(name).replaceAll('_', ' '), typeof detail === 'string' ? detail : ''].filter(Boolean).join(': ');
}

/** What an event of an agent says. */
function agentLine(kind, data) {
  if (kind === 'output') return protocolLine(data.data ?? '');
  if (kind === 'stderr') return data.data ?? '';
  if (kind === 'state') return [STATES[data.state] ?? data.state, data.task, data.until && `until ${exact(new Date(data.until).toISOString())}`].filter(Boolean).join(' · ');
  if (kind === 'chat_entry') {
    const { role, content, tool_name: tool, tool_input: input, tool_summary: summary, tool_result: result, is_error: isError } = data.chat_entry ?? {};
    if (tool && result === undefined) return callLine(tool, input, summary);
    return [isError ? 'failed' : ROLES[role] ?? role, result ?? content].filter(Boolean).join(': ');
  }
  if (kind === 'input') return `${data.from ? `${data.from}: ` : ''}${data.data ?? ''}`;
  if (kind === 'request') return data.tool ? callLine(data.tool.name, data.tool.input, data.title) : data.title;
  if (kind === 'answer') return [data.option_id, data.by && `by ${data.by}`].filter(Boolean).join(' ');
  if (kind === 'usage') return [`${data.input_tokens ?? 0} tokens in, ${data.output_tokens ?? 0} out`, data.cost_usd && `$${data.cost_usd.toFixed(4)}`].filter(Boolean).join(' · ');
  if (kind === 'error') return data.error;
  if (kind === 'exit') return [STATES[data.final_state] ?? data.final_state, data.exit_code !== undefined && `exit ${data.exit_code}`, data.signal && `signal ${data.signal}`].filter(Boolean).join(' · ');
  return null;
}

/** Whose a stream is, where it has a name. */
function streamName(state, stream) {
  const [family, id] = stream.split('/');
  if (family === 'agent' && state.hosts?.has(id)) return `agent ${nameOfHost(state.hosts.get(id))}`;
  if (family === 'peer') return `mail of ${nameOf(state, id)}`;
  return stream;
}

/** What an event says, in a line. */
function brief(state, { kind, stream, data, cut }) {
  if (cut && stream.startsWith('agent/')) return line(protocolLine(cut), 200);
  if (cut) return line(cut, 200);
  if (!data || typeof data !== 'object') return line(JSON.stringify(data), 200);
  if (stream.startsWith('agent/')) {
    const said = agentLine(kind, data);
    if (said !== null) return line(said, 200);
  }
  if (kind.startsWith('agent.')) return line([data.session_key ?? data.agent_id, STATES[data.state ?? data.final_state], data.instance, data.task].filter(Boolean).join(' · '), 200);
  if (kind.startsWith('request.')) return line([data.session_key ?? data.agent_id, data.kind, data.by && `answered by ${data.by}`].filter(Boolean).join(' · '), 200);
  if (kind.startsWith('source.')) return line([data.name, data.state?.replaceAll('_', ' '), data.reason].filter(Boolean).join(' · '), 200);
  if (kind === 'frame') return line(data.line, 200);
  if (kind === 'task' || kind === 'terminal') return line(`${data.status} · ${data.title ?? data.prompt ?? ''}`, 200);
  if (kind.startsWith('peer.')) return line([data.display_name ?? data.peer_id, data.status, data.reason].filter(Boolean).join(' · '), 200);
  if (kind.startsWith('message.')) return line([`${nameOf(state, data.from_peer)} → ${nameOf(state, data.to_peer)}`, data.reason].filter(Boolean).join(' · '), 200);
  if (kind.startsWith('session.')) return line([data.client, data.project, data.reason].filter(Boolean).join(' · ') || JSON.stringify(data), 200);
  if (kind.startsWith('ghap.')) return line([data.status, data.goal ?? state.ghap.get(data.id)?.goal ?? data.domain].filter(Boolean).join(' · ') || JSON.stringify(data), 200);
  if (kind.startsWith('daemon.') && data.version) return line([data.version, data.pid && `pid ${data.pid}`].filter(Boolean).join(' · '), 200);
  return line(JSON.stringify(data), 200);
}

function Event({ position, close }) {
  const read = useRead(() => get(query('/v1/events', { after: position - 1, limit: 1 })), [position]);
  const event = read.value?.events[0];
  if (read.error) return html`<${Failure} text=${read.error.message} again=${read.again} />`;
  if (!event) return html`<section class="detail" aria-label="Event">${read.isLoading ? html`<${Loading} of="the event" />` : html`<${Empty} title="There is no such event." />`}</section>`;
  if (event.position !== position) {
    return html`<section class="detail" aria-label="Event"><${Empty} title=${`Event ${position} is gone.`}>Retention removed it. The oldest after it is <a href=${path('log', String(event.position))}>${event.position}</a>.<//></section>`;
  }
  return html`<section class="detail" aria-label="Event"><header class="bar"><a class="back" href=${close}>Log</a><h2>${line(event.kind, 60)}</h2></header>
    <${Facts} of=${[['Position', html`<a href=${path('log', String(event.position))}>${event.position}</a>`], ['Stream', line(event.stream, 120)], ['Seq', event.seq], ['At', exact(event.at)]]} />
    <pre class="data" tabindex="0"><${Text} value=${JSON.stringify(event.data, null, 2)} cut=${20000} /></pre></section>`;
}

/** The position at or after a moment: the log is in the order of time, so it is found by halving. */
async function positionAt(moment, head) {
  let low = 0;
  let high = head;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const { events } = await get(query('/v1/events', { after: middle, limit: 1 }));
    if (!events.length || Date.parse(events[0].at) >= moment) high = middle;
    else low = events[0].position;
  }
  return low + 1;
}

export function Log({ route }) {
  const state = useStore('events', 'peers', 'ghap', 'hosts');
  const family = route.query.get('in') ?? '';
  const kind = route.query.get('kind') ?? '';
  const chosen = Number(route.id) || 0;
  const [find, setFind] = useState('');
  const [follow, setFollow] = useState(!chosen);
  const [past, setPast] = useState([]);
  const [start, setStart] = useState(1);
  const [error, setError] = useState('');
  const reading = useRef(false);
  // What is linked to, and is not here yet, is read with what stands around it.
  useEffect(() => {
    const first = state.events[0]?.position ?? Infinity;
    if (!chosen || chosen >= first || past.some((event) => event.position === chosen)) return;
    get(query('/v1/events', { after: Math.max(0, chosen - 100), limit: 300 })).then((page) => setPast(page.events), (failure) => setError(failure.message));
  }, [chosen]);
  const rows = useMemo(() => {
    const wanted = find.toLowerCase();
    const first = state.events[0]?.position ?? Infinity;
    const known = [...past.filter((event) => event.position < first), ...state.events];
    const fits = (event) => (!family || (family.endsWith('/') ? event.stream.startsWith(family) : event.stream === family))
      && (!kind || event.kind === kind || event.kind.startsWith(`${kind}.`))
      && (!wanted || `${event.stream} ${event.kind} ${event.cut ?? JSON.stringify(event.data)}`.toLowerCase().includes(wanted));
    const shown = known.filter(fits);
    const marks = state.marks.map((mark) => ({ ...mark, isMark: true }));
    if (past.length && past[past.length - 1].position + 1 < first) marks.push({ after: past[past.length - 1].position, text: `Events ${past[past.length - 1].position + 1} to ${first - 1} are not loaded.`, isMark: true, more: past[past.length - 1].position });
    for (const mark of marks) {
      let at = shown.findIndex((event) => !event.isMark && event.position > mark.after);
      if (at < 0) at = shown.length;
      shown.splice(at, 0, mark);
    }
    return shown;
  }, [family, kind, find, past, state.events.length, state.position, state.marks.length]);
  const kinds = useMemo(() => ['', ...new Set(state.events.map((event) => event.kind))].sort(), [state.position]);
  const more = async () => {
    if (reading.current) return;
    reading.current = true;
    const first = past[0]?.position ?? state.events[0]?.position ?? 1;
    try {
      const older = [];
      // A page may be shorter than was asked for, and where retention was there may be none at all.
      for (let reach = 500; first > 1 && !older.length; reach *= 2) {
        for (let after = Math.max(0, first - 1 - reach); after < first - 1;) {
          const { events } = await get(query('/v1/events', { after, limit: 500 }));
          older.push(...events.filter((event) => event.position < first));
          after = events.length ? events[events.length - 1].position : first;
        }
        if (reach >= first) break;
      }
      if (!older.length) setStart(first);
      setFollow(false);
      setPast((known) => [...older, ...known]);
    } catch (failure) {
      setError(failure.message);
    }
    reading.current = false;
  };
  const jump = async (event) => {
    const moment = Date.parse(event.target.value);
    if (!moment) return;
    try {
      setFollow(false);
      go(path('log', String(Math.max(1, await positionAt(moment, state.position))), Object.fromEntries(route.query)));
    } catch (failure) {
      setError(failure.message);
    }
  };
  const at = chosen ? rows.findIndex((event) => event.position === chosen) : undefined;
  const oldest = past[0]?.position ?? state.events[0]?.position ?? 1;
  return html`<div class=${`split${chosen ? ' has-detail' : ''}`}><section class="index" aria-label="Log"><header class="bar"><h2>Log</h2>
      <${Search} value=${find} set=${setFind} label="Search what is here" />
      <${Choice} label="In" value=${family} set=${(value) => setQuery({ in: value })} options=${FAMILIES} />
      <${Choice} label="Kind" value=${kind} set=${(value) => setQuery({ kind: value })} options=${kinds.includes(kind) ? kinds : [...kinds, kind]} />
      <label class="choice"><span>From</span><input type="datetime-local" step="1" onChange=${jump} /></label>
      <button onClick=${more} disabled=${oldest <= start}>Earlier</button>
      ${follow ? html`<button onClick=${() => setFollow(false)}>Pause</button>` : html`<button onClick=${() => setFollow(true)}>Follow</button>`}
      <span class="muted total">${rows.length.toLocaleString('en')}</span></header>
    ${error && html`<${Failure} text=${error} />`}
    ${!rows.length ? html`<${Empty} title=${state.events.length ? 'No event here matches.' : 'Nothing has happened yet.'} />`
      : html`<${List} kind="log" class="events" label="Events" count=${rows.length} height=${24} follow=${follow} onFollow=${setFollow} at=${at}
        keyOf=${(index) => rows[index].position ?? `m${index}`} onOpen=${(index) => rows[index].position && go(path('log', String(rows[index].position), Object.fromEntries(route.query)))}
        row=${(index) => {
          const event = rows[index];
          if (event.isMark) return html`<span class="gap">${event.text}</span>`;
          return html`<a class="position" href=${path('log', String(event.position), Object.fromEntries(route.query))}>${event.position}</a><span class="at" title=${exact(event.at)}>${clock(event.at)}</span>
            <span class="stream" title=${event.stream}><bdi>${line(streamName(state, event.stream), 60)}</bdi></span><span class="kind">${line(event.kind, 40)}</span><span class="brief"><bdi>${brief(state, event)}</bdi></span>`;
        }} />`}</section>
    ${chosen ? html`<${Event} key=${chosen} position=${chosen} close=${path('log', '', Object.fromEntries(route.query))} />` : ''}</div>`;
}
