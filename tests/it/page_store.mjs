// The page's store without a browser: it reads the lists of a daemon of three agents and follows its feed, in which two are
// removed. The one is known, and read anew at that moment; the other's list is still being read.
import assert from 'node:assert/strict';

Object.defineProperty(globalThis, 'navigator', { value: {}, configurable: true });
globalThis.localStorage = { getItem: () => null, setItem: () => {} };

const held = () => {
  let pass;
  const passed = new Promise((done) => { pass = done; });
  return { passed, pass };
};
const until = async (is) => {
  while (!is()) await new Promise((done) => setTimeout(done, 5));
};
const json = (value) => new Response(JSON.stringify(value), { headers: { 'Content-Type': 'application/json' } });
const agent = (id, state) => ({ id, state, session_key: `agent:${id}`, backend: 'exec' });

const asked = [];
const list = held();
const one = held();
let feed;
let isSecond = false;
globalThis.fetch = async (target) => {
  const { pathname: path, searchParams } = new URL(target, 'http://localhost');
  asked.push(path);
  if (path === '/v1/health') return json({ store: { head: 0 } });
  if (path === '/v1/events' && searchParams.get('limit') === null) {
    return new Response(new ReadableStream({ start: (controller) => { feed = controller; } }));
  }
  if (path === '/v1/hosts') {
    const agents = [agent('ag_1', 'running'), agent('ag_2', 'running'), agent('ag_3', 'running')];
    if (isSecond) await list.passed;
    return json({ agents, count: agents.length });
  }
  if (path === '/v1/hosts/ag_1') {
    await one.passed;
    return json(agent('ag_1', 'done'));
  }
  if (path === '/v1/hosts/ag_3') return json(agent('ag_3', 'idle'));
  if (path.endsWith('/history')) return json({ entries: [] });
  return json({ events: [], count: 0 });
};

const { follow, load, state } = await import('./store.js');
follow();
await until(() => feed && state.hosts?.size === 3);

let position = 0;
const tell = (kind, id) => {
  position += 1;
  const data = { agent_id: id, session_key: `agent:${id}` };
  const event = { position, stream: 'team', seq: position, kind, data, at: '2026-01-01T00:00:00.000Z' };
  feed.enqueue(new TextEncoder().encode(`id: ${position}\nevent: ${kind}\ndata: ${JSON.stringify(event)}\n\n`));
};

state.words.set('ag_1', { text: 'bye' });
tell('agent.ended', 'ag_1');
await until(() => asked.includes('/v1/hosts/ag_1'));
isSecond = true;
const reading = load('hosts');
tell('agent.removed', 'ag_1');
tell('agent.removed', 'ag_2');
tell('agent.ended', 'ag_3');
await until(() => state.position === position);
assert.deepEqual([...state.hosts.keys()], ['ag_3'], 'removed by the event alone');
assert.ok(!state.words.has('ag_1'));
one.pass();
await until(() => state.hosts.get('ag_3').state === 'idle');
assert.deepEqual([...state.hosts.keys()], ['ag_3'], 'what was read of an agent is older than its removal');
list.pass();
await reading;
assert.deepEqual([...state.hosts.keys()], ['ag_3'], 'the list is older than the removals');
assert.ok(!asked.includes('/v1/hosts/ag_2'), 'nobody asks for what is gone');
console.log('fine');
process.exit(0);
