// What the page knows. Lists are read once; after that one stream of events says what has changed. The stream goes on where
// it was after the daemon was away, and a hole in it is shown as a hole.
import { useEffect, useState } from './lib.js';
import { ApiError, PAGE, get, query } from './api.js';
import { moment } from './time.js';

/** Events that are kept for the log, and the longest data of one. */
const EVENTS_KEPT = 10_000;
const DATA_KEPT = 2000;
/** How often views are told of changes, in ms. */
const BEAT = 200;
/** Silence after which the stream is taken for dead, in ms: the daemon comments every 15 s. */
const SILENCE = 40_000;
/** Messages and tasks that are kept. */
const ROWS_KEPT = 2000;

export const state = {
  connection: { status: 'connecting', since: Date.now() },
  health: null,
  position: 0,
  peers: new Map(),
  sessions: new Map(),
  ghap: new Map(),
  tasks: new Map(),
  messages: new Map(),
  // null where the daemon has no such route.
  instances: null,
  hosts: null,
  requests: null,
  sources: null,
  /** What agents that we host said last, by their ids: `{text, at}`. */
  words: new Map(),
  /** Names of peers that were removed. */
  names: new Map(),
  events: [],
  /** What is not an event and belongs between two of them: `{after, text}`. */
  marks: [],
  /** Counts by the second, of what came since `since` (ms). */
  rates: { events: [], deliveries: [], since: Date.now() },
  loaded: new Set(),
  failures: new Map(),
};

const listeners = new Map();
const dirty = new Set();
let timer = null;

/** Tells the views that show this. */
export function changed(topic) {
  dirty.add(topic);
  timer ??= setTimeout(flush, BEAT);
}

function flush() {
  timer = null;
  const topics = [...dirty];
  dirty.clear();
  const told = new Set(topics.flatMap((topic) => [...(listeners.get(topic) ?? [])]));
  told.forEach((tell) => tell());
}

/** The state, and again whenever one of these topics changes. */
export function useStore(...topics) {
  const [, set] = useState(0);
  useEffect(() => {
    const tell = () => set((n) => n + 1);
    topics.forEach((topic) => {
      if (!listeners.has(topic)) listeners.set(topic, new Set());
      listeners.get(topic).add(tell);
    });
    return () => topics.forEach((topic) => listeners.get(topic).delete(tell));
  }, []);
  return state;
}

/** Streams that a view follows: it is given their events as they come. */
const followers = new Map();

export function followStream(stream, tell) {
  if (!followers.has(stream)) followers.set(stream, new Set());
  followers.get(stream).add(tell);
  return () => followers.get(stream)?.delete(tell);
}

function setConnection(status) {
  if (isLeader) tellOthers({ type: 'status', status });
  if (state.connection.status !== status) state.connection = { status, since: Date.now() };
  changed('connection');
}

// Lists

/** Adds to an agent that its vendor refuses for usage when it goes on: its last state says so. */
async function addLimit(host) {
  if (host.state !== 'limited') return;
  for (let after = 0; ;) {
    const { events } = await get(query('/v1/events', { stream: `agent/${host.id}`, kind: 'state', after, limit: 500 }));
    if (!events.length) return;
    const last = events[events.length - 1];
    host.limited_until = last.data.until;
    after = last.seq;
  }
}

/** Folders of sessions whose files may name servers, and agents whose last words are read: the latest are. */
const FOLDERS = 30;
const SPEAKERS = 50;
const OVER = ['done', 'error', 'lost'];

/** Servers of the person's own files, and of the files of each project that a session is in. */
async function readSources() {
  const key = (source) => JSON.stringify([source.project ?? '', source.name, source.from]);
  const found = await all('/v1/sources', 'sources', key, {}, 500);
  const { sessions } = await get(query('/v1/sessions', { open: true, limit: 500 }));
  const folders = [...new Set(sessions.map((session) => session.cwd ?? session.project).filter(Boolean))].slice(0, FOLDERS);
  for (const project of folders) {
    for (const [id, source] of await all('/v1/sources', 'sources', key, { project }, 500)) if (source.project && !found.has(id)) found.set(id, source);
  }
  return found;
}

/** What an agent said last, where no event has told it yet. */
async function readWords(host) {
  if (OVER.includes(host.state) || state.words.has(host.id)) return;
  const page = await get(query(`/v1/hosts/${encodeURIComponent(host.id)}/history`, { limit: 5, include_tools: false })).catch(() => null);
  const last = page?.entries?.findLast((entry) => entry.role === 'assistant' && entry.content);
  if (last && !state.words.has(host.id)) state.words.set(host.id, { text: last.content, at: moment(last.timestamp) });
  changed('hosts');
}

/** The names of peers that are gone and that messages still bear. */
async function readNames() {
  for (let after = 0; ;) {
    const { events } = await get(query('/v1/events', { stream_prefix: 'team', kind: 'peer.removed', after, limit: 500 }));
    events.forEach(({ data }) => state.names.set(data.peer_id, data.display_name));
    changed('peers');
    if (!events.length) return;
    after = events[events.length - 1].position;
  }
}

const LISTS = {
  peers: () => {
    readNames().catch(() => {});
    return all('/v1/peers', 'peers', 'peer_id', {}, 1000);
  },
  sessions: () => all('/v1/sessions', 'sessions', 'session_id', { open: true }, 1000),
  ghap: () => all('/v1/ghap', 'ghap', 'id', { status: 'active' }, 1000),
  tasks: () => all('/v1/tasks', 'tasks', 'task_id', {}, 500).then(oldestFirst),
  messages: () => all('/v1/messages', 'messages', 'id', {}, 500).then(oldestFirst),
  hosts: async () => {
    const hosts = await all('/v1/hosts', 'hosts', 'id', {}, 500);
    for (const host of hosts.values()) await addLimit(host);
    [...hosts.values()].slice(0, SPEAKERS).forEach(readWords);
    return hosts;
  },
  requests: () => all('/v1/requests', 'requests', 'request_id', { open: true }, 500),
  instances: () => all('/v1/agents', 'agents', 'instance', {}, 500),
  sources: readSources,
};

async function all(path, name, key, filters, most) {
  const rows = new Map();
  let cursor;
  do {
    const page = await get(query(path, { ...filters, limit: Math.min(500, most), cursor }));
    const items = page[name] ?? page.agents ?? [];
    for (const item of items) rows.set(typeof key === 'function' ? key(item) : item[key], item);
    cursor = page.next_cursor;
  } while (cursor && rows.size < most);
  return rows;
}

/** A list that comes the latest first, in the order in which rows are added and let go of. */
const oldestFirst = (rows) => new Map([...rows].reverse());

/** Reads of lists that are under way, each with the changes that came meanwhile. */
const reads = new Set();
let asked = 0;
/** The number of the read that each list is from. */
const shown = new Map();

export async function load(name) {
  const read = { name, number: (asked += 1), later: [] };
  reads.add(read);
  try {
    const rows = await LISTS[name]();
    reads.delete(read);
    // A read that was asked for later may have come first.
    if (!(shown.get(name) > read.number)) {
      state[name] = rows;
      shown.set(name, read.number);
      read.later.forEach((apply) => apply());
    }
    state.failures.delete(name);
    state.loaded.add(name);
  } catch (error) {
    reads.delete(read);
    if (error.status === 401) return signedOut();
    state.failures.set(name, error.message);
  }
  changed(name);
  return undefined;
}

/** Changes a list, and once more when what is being read of it has come, which may be older. */
function change(name, apply) {
  apply();
  for (const read of reads) if (read.name === name) read.later.push(apply);
  changed(name);
}

function signedOut() {
  setConnection('signed-out');
}

const stale = new Map();
let refetching = null;

/** Reads one thing anew, soon; the whole list where many have changed. */
function refresh(list, id) {
  if (!stale.has(list)) stale.set(list, new Set());
  stale.get(list).add(id);
  refetching ??= setTimeout(refetch, BEAT);
}

const ONE = {
  peers: (id) => `/v1/peers/${encodeURIComponent(id)}`,
  sessions: (id) => `/v1/sessions/${encodeURIComponent(id)}`,
  ghap: (id) => `/v1/ghap/${encodeURIComponent(id)}`,
  messages: (id) => `/v1/messages/${encodeURIComponent(id)}`,
  hosts: (id) => `/v1/hosts/${encodeURIComponent(id)}`,
};

/** How a list changes by what the daemon says of one thing; null if it says nothing. */
async function readOne(list, id) {
  try {
    const row = await get(ONE[list](id));
    if (list === 'hosts') await addLimit(row);
    // Of sessions the list has those that are open.
    const isOver = list === 'sessions' && row.ended_at;
    return () => (isOver ? state[list].delete(id) : state[list].set(id, row));
  } catch (error) {
    return error.status === 404 ? () => state[list].delete(id) : null;
  }
}

async function refetch() {
  const wanted = [...stale];
  stale.clear();
  for (const [list, ids] of wanted) {
    if (!state[list]) continue;
    if (!ONE[list] || ids.size > 20) {
      await load(list);
      continue;
    }
    for (const id of ids) {
      // What an event tells meanwhile is newer than what is read.
      const read = { name: list, later: [] };
      reads.add(read);
      const apply = await readOne(list, id);
      reads.delete(read);
      if (apply) change(list, () => [apply, ...read.later].forEach((each) => each()));
    }
    bound(state[list]);
  }
  refetching = stale.size ? setTimeout(refetch, BEAT) : null;
}

function bound(rows) {
  for (const key of rows.keys()) {
    if (rows.size <= ROWS_KEPT) return;
    rows.delete(key);
  }
}

// Events

function take(event) {
  const { kind, stream, data } = event;
  const family = kind.split('.')[0];
  if (kind === 'task' || kind === 'terminal') {
    if (data?.task_id) {
      change('tasks', () => {
        state.tasks.set(data.task_id, { ...state.tasks.get(data.task_id), ...data });
        bound(state.tasks);
      });
    }
  } else if (kind === 'peer.status') {
    // What a session waits for stands in its document.
    if (data.status === 'waiting' && !data.waiting_for) refresh('peers', data.peer_id);
    change('peers', () => {
      const peer = state.peers.get(data.peer_id);
      if (!peer) {
        refresh('peers', data.peer_id);
        return;
      }
      const since = peer.status === data.status ? peer.since : data.since ?? event.at;
      state.peers.set(data.peer_id, { ...peer, status: data.status, evidence: data.evidence ?? peer.evidence, waiting_for: data.waiting_for, since, last_seen: event.at });
    });
  } else if (kind === 'peer.removed') {
    state.names.set(data.peer_id, data.display_name ?? state.peers.get(data.peer_id)?.display_name);
    change('peers', () => state.peers.delete(data.peer_id));
  } else if (family === 'peer') {
    refresh('peers', data.peer_id);
  } else if (family === 'message' && data?.id) {
    if (data.state === 'offered') count('deliveries', event);
    change('messages', () => {
      const known = state.messages.get(data.id);
      if (known) state.messages.set(data.id, { ...known, state: data.state, reason: data.reason });
      else refresh('messages', data.id);
    });
  } else if (family === 'session' && data?.session_id) {
    if (kind === 'session.ended') {
      change('sessions', () => state.sessions.delete(data.session_id));
    } else {
      // Its folder may have a file that names servers.
      if (kind === 'session.started' && state.sources) refresh('sources', '');
      refresh('sessions', data.session_id);
    }
  } else if (family === 'ghap' && data?.id) {
    refresh('ghap', data.id);
  } else if (family === 'request') {
    refresh('requests', data?.request_id ?? '');
  } else if (family === 'source') {
    refresh('sources', data?.name ?? '');
  } else if (kind === 'agent.removed' && data?.agent_id) {
    state.words.delete(data.agent_id);
    change('hosts', () => state.hosts?.delete(data.agent_id));
  } else if (family === 'agent' && data?.agent_id) {
    refresh('hosts', data.agent_id);
  } else if (kind === 'state' && stream.startsWith('agent/')) {
    refresh('hosts', stream.slice(6));
  } else if (kind === 'chat_entry' && stream.startsWith('agent/')) {
    const { role, content } = data?.chat_entry ?? {};
    if (role === 'assistant' && content) {
      state.words.set(stream.slice(6), { text: content, at: event.at });
      changed('hosts');
    }
  } else if (kind === 'daemon.started') {
    mark(event.position - 1, `The daemon started (${data?.version ?? ''}).`);
  }
  for (const tell of followers.get(stream) ?? []) tell(event);
}

function count(name, event) {
  const second = Math.floor(Date.parse(event.at) / 1000);
  const series = state.rates[name];
  const last = series[series.length - 1];
  if (last && last[0] === second) last[1] += 1;
  else series.push([second, 1]);
  if (series.length > 400) series.splice(0, 100);
}

export function mark(after, text) {
  state.marks.push({ after, text });
  if (state.marks.length > 100) state.marks.shift();
  changed('events');
}

/** Keeps the beginning of large data; the whole is a request away. */
function kept(event, size) {
  return size > DATA_KEPT ? { ...event, data: undefined, cut: JSON.stringify(event.data).slice(0, DATA_KEPT), size } : event;
}

/** Words of an agent on their way to an entry. */
function hearDelta({ stream, data, at }) {
  const id = stream.slice(6);
  const known = state.words.get(id);
  if (data.role !== 'user') {
    const before = known?.of === data.of ? known.text : '';
    state.words.set(id, { text: before + data.text, at: at ?? new Date().toISOString(), of: data.of, role: data.role });
    changed('hosts');
  }
  for (const tell of followers.get(stream) ?? []) tell({ kind: 'delta', data });
}

/** The frames that repeat all unfinished entries, as at the beginning of a feed. */
function wordsSoFar() {
  const said = [...state.words].filter(([, { of, text }]) => of && text);
  return [['silence', 'null'], ...said.map(([id, { at, ...data }]) => ['delta', JSON.stringify({ stream: `agent/${id}`, data, at })])];
}

/** A feed that begins tells all of what is being said once more. */
function forgetWords() {
  for (const [id, words] of state.words) if (words.of) state.words.set(id, { ...words, text: '' });
  for (const [stream, tells] of followers) if (stream.startsWith('agent/')) for (const tell of tells) tell({ kind: 'silence' });
}

function receive(name, text) {
  if (name === 'gap') return gap(JSON.parse(text));
  const event = JSON.parse(text);
  // What an agent is saying: the finished entry is an event.
  if (name === 'delta') {
    hearDelta(event);
    return undefined;
  }
  if (name === 'silence') return forgetWords();
  if (!(event.position > state.position)) return undefined;
  state.position = event.position;
  count('events', event);
  take(event);
  state.events.push(kept(event, text.length));
  if (state.events.length > EVENTS_KEPT + 1000) state.events.splice(0, 1000);
  changed('events');
  return undefined;
}

function gap({ requested, oldest, latest, reason }) {
  if (reason === 'ahead') {
    mark(state.position, `A gap: the log ends at ${latest} and this page knew ${requested}. It was restored from a backup.`);
    state.position = 0;
    throw new Restored();
  }
  mark(state.position, `A gap: ${goneEvents(requested, oldest)}; retention removed them.`);
  head().catch(() => {});
  reload();
}

/** What a gap says is gone. The last event of each stream stays, so what is gone may have no end. */
export function goneEvents(requested, oldest) {
  if (oldest - 1 > requested + 1) return `events ${requested + 1} to ${oldest - 1} are gone`;
  if (oldest - 1 === requested + 1) return `event ${requested + 1} is gone`;
  return `some of the events after ${requested} are gone`;
}

class Restored extends Error {}

/** Reads all lists. */
export function reload() {
  Object.keys(LISTS).forEach((name) => load(name));
}

// The stream. A browser opens six connections to a daemon, so its tabs share one: the tab that holds a lock reads the stream
// and tells the others what comes. The tab that the person looks at takes the lock, as hidden ones are slowed down.

const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const channel = navigator.locks && 'BroadcastChannel' in globalThis ? new BroadcastChannel('svc-feed') : null;
let isLeader = false;
let isBegun = false;
/** What other tabs told before this one had read its lists. */
const early = [];

function tellOthers(message) {
  channel?.postMessage(message);
}

/** Lets the page's own events through; unlike a timer this is not slowed down in a hidden tab. */
function breathe() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((done) => {
    port1.onmessage = () => {
      port1.close();
      done();
    };
    port2.postMessage(null);
  });
}

async function head() {
  const health = await get('/v1/health');
  state.health = health;
  changed('health');
  return health;
}

async function begin() {
  const { store } = await head();
  state.position = store.head;
  // What was before is there, too, as far as a screen shows it.
  const past = await get(query('/v1/events', { after: Math.max(0, store.head - 300), limit: 300 })).catch(() => ({ events: [] }));
  state.events = past.events.filter((event) => event.position <= store.head).map((event) => kept(event, JSON.stringify(event.data).length));
  if (!state.rates.events.length && state.events.length) {
    state.events.forEach((event) => {
      count('events', event);
      if (event.kind.startsWith('message.') && event.data?.state === 'offered') count('deliveries', event);
    });
    // All that there is, or the latest of it.
    state.rates.since = past.events.length < 300 ? 0 : Date.parse(state.events[0].at);
  }
  changed('events');
  reload();
  isBegun = true;
  early.splice(0).forEach(([name, text]) => receive(name, text));
}

let beginning = null;

/** Reads what there is, once, whoever asks for it. */
function start() {
  beginning ??= begin().finally(() => {
    beginning = null;
  });
  return beginning;
}

/** Reads what another tab does not tell any more: it follows the log from `to` on. */
async function catchUp(to) {
  isBegun = false;
  try {
    while (state.position < to) {
      const page = await get(query('/v1/events', { after: state.position, limit: 500 }));
      if (!page.events.length) break;
      page.events.forEach((event) => receive('message', JSON.stringify(event)));
    }
  } catch {
    reload();
  }
  isBegun = true;
  early.splice(0).forEach(([name, text]) => receive(name, text));
}

async function read(stopped) {
  const cancel = new AbortController();
  const stop = () => cancel.abort();
  stopped?.addEventListener('abort', stop);
  let silence;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(stop, SILENCE);
  };
  heard();
  try {
    const reply = await fetch(`/v1/events?after=${state.position}`, {
      headers: { ...PAGE, Accept: 'text/event-stream', 'Last-Event-ID': String(state.position) },
      signal: cancel.signal,
      cache: 'no-store',
    });
    if (!reply.ok) throw new ApiError(reply.status, await reply.json().catch(() => null));
    back();
    tellOthers({ type: 'status', status: 'live', from: state.position });
    tellOthers({ type: 'frames', frames: [['silence', 'null']] });
    forgetWords();
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    let begun = performance.now();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      const searched = Math.max(0, rest.length - 1);
      rest += value;
      let from = 0;
      let frames = [];
      for (let end = rest.indexOf('\n\n', searched); end >= 0; end = rest.indexOf('\n\n', from)) {
        const frame = parsed(rest.slice(from, end));
        from = end + 2;
        if (!frame) continue;
        frames.push(frame);
        // The others first: what this tab makes of it may fail.
        if (frames.length === 100) {
          tellOthers({ type: 'frames', frames });
          frames.forEach(([name, text]) => receive(name, text));
          frames = [];
        }
        // A burst leaves room for the person's own events.
        if (performance.now() - begun > 12) {
          await breathe();
          begun = performance.now();
        }
      }
      if (frames.length) {
        tellOthers({ type: 'frames', frames });
        frames.forEach(([name, text]) => receive(name, text));
      }
      rest = rest.slice(from);
    }
  } finally {
    clearTimeout(silence);
    stopped?.removeEventListener('abort', stop);
    cancel.abort();
  }
}

function parsed(text) {
  let name = 'message';
  let data = '';
  for (const field of text.split('\n')) {
    if (field.startsWith('data: ')) data += field.slice(6);
    else if (field.startsWith('event: ')) name = field.slice(7);
  }
  return data ? [name, data] : null;
}

let goneAt = null;

function back() {
  if (goneAt) {
    mark(state.position, `The daemon was away for ${Math.max(1, Math.round((Date.now() - goneAt) / 1000))} s. The events of that time follow.`);
    goneAt = null;
    head().catch(() => {});
    reload();
  }
  setConnection('live');
}

function away() {
  goneAt ??= Date.now();
  setConnection('away');
}

/** Reads the stream for as long as this tab is the one that does. Answers whether the browser is signed out. */
async function lead(stopped) {
  let failures = 0;
  while (!stopped?.aborted) {
    const started = Date.now();
    try {
      if (!isBegun) await start();
      await read(stopped);
    } catch (error) {
      if (error instanceof Restored) isBegun = false;
      if (error.status === 401 || error.status === 403) {
        signedOut();
        return true;
      }
    }
    if (stopped?.aborted) break;
    away();
    // Slower and slower, up to five seconds; sooner when the person comes back to the page.
    failures = Date.now() - started > 5000 ? 0 : failures + 1;
    await Promise.race([wait(Math.min(5000, 250 * 2 ** failures)), isBack()]);
  }
  return false;
}

function isBack() {
  return new Promise((done) => {
    addEventListener('online', done, { once: true });
    document.addEventListener('visibilitychange', () => !document.hidden && done(), { once: true });
  });
}

/** What another tab tells. */
function hear({ type, status, from, frames }) {
  if (type === 'hello') {
    if (!isLeader) return;
    tellOthers({ type: 'status', status: state.connection.status });
    // A tab that joins has not received the beginning of an unfinished entry.
    tellOthers({ type: 'frames', frames: wordsSoFar() });
  } else if (isLeader) {
    // Two tabs may read for a moment, when one takes over from the other.
  } else if (type === 'status') {
    if (isBegun && from > state.position) catchUp(from);
    if (status === 'live') back();
    else if (status === 'away') away();
    else if (status === 'signed-out') signedOut();
  } else if (type === 'frames') {
    if (!isBegun) {
      early.push(...frames);
      return;
    }
    try {
      frames.forEach(([name, text]) => receive(name, text));
    } catch (error) {
      if (!(error instanceof Restored)) throw error;
      isBegun = false;
      start().catch(() => {});
    }
  }
}

let queued = null;

function contend(isTaking) {
  queued?.abort();
  queued = isTaking ? null : new AbortController();
  const stop = new AbortController();
  const options = isTaking ? { steal: true } : { signal: queued.signal };
  let isOver = false;
  let wasAborted = false;
  queued?.signal.addEventListener('abort', () => { wasAborted = !isLeader; });
  navigator.locks.request('svc-feed', options, async () => {
    isLeader = true;
    isOver = await lead(stop.signal);
  }).catch(() => {}).finally(() => {
    // Another tab took over, unless this one has given up its place in the queue for a better one.
    if (wasAborted) return;
    isLeader = false;
    stop.abort();
    if (!isOver) contend(false);
  });
}

/** Follows the daemon for as long as the page is open. */
export async function follow() {
  if (!channel) {
    await lead(null);
    return;
  }
  channel.onmessage = ({ data }) => hear(data);
  tellOthers({ type: 'hello' });
  contend(!document.hidden);
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && !isLeader) contend(true);
  });
  // One that waits for the lock reads its lists all the same.
  for (let failures = 0; !isBegun; failures += 1) {
    try {
      await start();
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        signedOut();
        return;
      }
      await wait(Math.min(5000, 250 * 2 ** failures));
    }
  }
}

// What is seen and what is not: kept in this browser, as it is about this person's eyes.

const SEEN = 'svc-seen-tasks';
const seen = new Set(JSON.parse(localStorage.getItem(SEEN) ?? '[]'));

/** Whether the person has seen how a task or a message ended, by its id. */
export const isSeen = (id) => seen.has(id);

export function see(ids) {
  ids.forEach((id) => seen.add(id));
  localStorage.setItem(SEEN, JSON.stringify([...seen].slice(-1000)));
  changed('tasks');
}
