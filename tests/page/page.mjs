// The page, as a person meets it. Each test has a daemon of its own; names are promises.
import { spawnSync } from 'node:child_process';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { createRequire } from 'node:module';
import { Daemon, Tab, closeBrowser } from './daemon.mjs';

const AXE = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const VIEWS = ['now', 'agents', 'messages', 'tasks', 'log', 'journal', 'servers', 'health'];
const at = (view) => (view === 'now' ? '/' : `/ui/${view}`);
const tests = [];
const test = (name, run) => tests.push({ name, run });

async function axe(tab, where) {
  // Not by a script element: the page's policy would refuse it.
  await tab.page.evaluate(AXE);
  const { violations } = await tab.page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }));
  const found = violations.map((each) => `${each.id}: ${each.help}\n  ${each.nodes.slice(0, 3).map((node) => `${node.html.slice(0, 200)} ${node.any?.[0]?.message ?? ''}`).join('\n  ')}`);
  assert.deepEqual(found, [], `${where}: axe`);
}

async function shot(tab, name) {
  if (!process.env.SVC_SHOTS) return;
  fs.mkdirSync(process.env.SVC_SHOTS, { recursive: true });
  await tab.page.screenshot({ path: path.join(process.env.SVC_SHOTS, `${name}.png`) });
}

async function fill(daemon) {
  const ann = await daemon.peer('ann');
  const bob = await daemon.peer('bob', { backend: 'codex' });
  await daemon.post(`/v1/peers/${bob.peer_id}/messages`, { text: 'Does the parser keep comments?', from_peer: ann.peer_id, type: 'query' });
  await daemon.post(`/v1/peers/${ann.peer_id}/messages`, { text: 'It does since yesterday.', from_peer: bob.peer_id, type: 'response' });
  await daemon.tool('start_session', { session_id: 's-ann', cwd: '/tmp', client: 'claude-code' });
  await daemon.tool('start_ghap', { session_id: 's-ann', domain: 'debugging', strategy: 'read-the-error', goal: 'Find the flaky test', hypothesis: 'The clock moves', action: 'Freeze it', prediction: 'It passes', probability: 0.8 });
  await daemon.tool('start_session', { session_id: 'old', cwd: '/tmp', client: 'codex' });
  for (let n = 0; n < 30; n += 1) {
    await daemon.tool('start_ghap', { session_id: 'old', domain: 'debugging', strategy: 'read-the-error', goal: `The cache loses tenant ${n}`, hypothesis: 'It is shared', action: 'Look', prediction: 'It is seen', probability: [0.6, 0.8, 0.95][n % 3] });
    const why = { surprise: 'It was not', root_cause: { category: 'oversight', description: 'Not seen' }, lesson: { what_worked: 'Look' } };
    await daemon.tool('resolve_ghap', { session_id: 'old', status: n % 4 ? 'confirmed' : 'falsified', result: 'Seen', ...(n % 4 ? {} : why) });
  }
  const bad = await daemon.task('cargo test', ['one', 'two', '\u001b[31mthree\u001b[0m']);
  await daemon.end(bad, { status: 'failed', exit_code: 101, error: 'tests failed' });
  const task = await daemon.task('npm run build', ['building', 'built']);
  return { ann, bob, bad, task };
}

test('a link signs in once, the code leaves the address, and scripts read no secret', async (daemon) => {
  const tab = await Tab.open();
  const link = daemon.link();
  const code = new URL(link).hash.slice(1);
  await tab.page.goto(link);
  await tab.live();
  const secrets = await tab.page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }, document.documentElement.outerHTML, location.href]));
  const [cookie] = await tab.context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, 'Strict', '/']);
  const hours = (cookie.expires * 1000 - Date.now()) / 3_600_000;
  assert.ok(hours > 11.9 && hours <= 12, `${hours} h`);
  for (const secret of [code, cookie.value, daemon.token]) assert.ok(!secrets.includes(secret), 'a secret is where scripts read');
  assert.deepEqual(tab.problems, []);
  // The address of the sign-in is not in the history either.
  await tab.page.goto('about:blank');
  const other = await Tab.open();
  await other.page.goto(link);
  await other.page.waitForFunction(() => document.body.innerText.includes('used already'));
  assert.match(await other.page.evaluate(() => document.body.innerText), /svc open/);
  assert.deepEqual(await other.context.cookies(), []);
  assert.ok(!other.page.url().includes(code));
  await other.page.goto(`${daemon.page}/`);
  await other.page.waitForFunction(() => document.body.innerText.includes('Signed out') && document.body.innerText.includes('svc open'));
});

test('each view of an empty daemon says what to do', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  const words = { now: 'svc install', agents: 'hosts no agents|svc agent start', messages: 'No messages yet', tasks: 'svc task run', log: 'daemon.started', journal: 'start_ghap', servers: 'Tools', health: 'checks are fine' };
  for (const view of VIEWS) {
    await tab.view(at(view));
    await tab.page.waitForFunction((wanted) => new RegExp(wanted).test(document.querySelector('main')?.innerText), { timeout: 10_000 }, words[view])
      .catch(async () => { throw new Error(`${view}: ${await tab.text()}`); });
    const current = await tab.page.$eval('nav a[aria-current="page"]', (link) => link.innerText.toLowerCase());
    assert.ok(current.startsWith(view), current);
    await axe(tab, `${view}, empty`);
  }
  assert.deepEqual(tab.problems, []);
  assert.deepEqual(tab.foreign, []);
});

for (const [dark, width] of [[false, 1280], [true, 1280], [false, 360], [true, 360], [false, 2560]]) {
  test(`each view with data, ${dark ? 'dark' : 'light'}, ${width} px: no violation, no error, nothing beside the window`, async (daemon) => {
    const { bad } = await fill(daemon);
    const tab = await Tab.signedIn(daemon, { dark, width, height: width < 500 ? 780 : 1000, reduced: dark });
    const words = { now: 'Find the flaky test', agents: 'Agents', messages: 'It does since yesterday.', tasks: 'npm run build', log: 'terminal', journal: 'The cache loses tenant', servers: 'No child server is configured.', health: 'Size on disk' };
    const places = [...VIEWS.map((view) => [view, at(view), words[view]]), ['task', `/ui/tasks/${bad}`, 'tests failed'], ['calibration', '/ui/journal?tab=calibration', 'Hit rate by week'], ['event', '/ui/log/3', 'Position'], ['tools', '/ui/servers?tab=tools', 'peer_send'], ['tool', '/ui/servers/peer_send', 'name or session key']];
    for (const [name, place, word] of places) {
      await tab.view(place);
      await tab.has(word);
      if (name === 'calibration') await tab.page.waitForSelector('.plot canvas');
      await axe(tab, name);
      const [inner, scroll] = await tab.page.evaluate(() => [innerWidth, document.scrollingElement.scrollWidth]);
      assert.ok(scroll <= inner, `${name}: ${scroll} px in a window of ${inner}`);
      await shot(tab, `${name}-${width}${dark ? '-dark' : ''}`);
    }
    assert.deepEqual(tab.problems, []);
    assert.deepEqual(tab.foreign, []);
  });
}

test('what happens shows without a reload', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  const ann = await daemon.peer('ann');
  await tab.has('ann');
  await daemon.tool('start_session', { session_id: 's-ann', cwd: '/tmp' });
  await daemon.tool('start_ghap', { session_id: 's-ann', domain: 'debugging', strategy: 'read-the-error', goal: 'Find the leak', hypothesis: 'The pool leaks', action: 'Count', prediction: 'It grows' });
  await tab.has('Find the leak');
  await daemon.post(`/v1/peers/${ann.peer_id}/heartbeat`, { status: 'busy' });
  await tab.has('busy');
  const task = await daemon.task('make all', []);
  await daemon.end(task, { status: 'failed', exit_code: 2 });
  await tab.has('make all');
  await tab.click('Read output');
  await tab.has('exit 2');
  await tab.page.keyboard.press('g');
  await tab.page.keyboard.press('n');
  await tab.has('Nothing needs you.');
  await tab.page.keyboard.press('g');
  await tab.page.keyboard.press('m');
  await daemon.post(`/v1/peers/${ann.peer_id}/messages`, { text: 'main is frozen' });
  await tab.has('main is frozen');
  const inbox = await daemon.get(`/v1/peers/${ann.peer_id}/messages`);
  const delivery = (word) => tab.page.waitForFunction((wanted) => [...document.querySelectorAll('.message .state')].some((each) => each.innerText === wanted), { timeout: 10_000, polling: 50 }, word);
  await delivery('handed over');
  await daemon.post(`/v1/peers/${ann.peer_id}/messages/ack`, { ids: inbox.messages.map((message) => message.id) });
  await delivery('read');
  assert.deepEqual(tab.problems, []);
});

test('what needs a person shows with its one action, and goes when it is done', async (daemon) => {
  const ann = await daemon.peer('ann');
  const bob = await daemon.peer('bob', { backend: 'codex' });
  await daemon.post(`/v1/peers/${bob.peer_id}/messages`, { text: 'Are you there?', from_peer: ann.peer_id, type: 'query' });
  await daemon.call('DELETE', `/v1/peers/${bob.peer_id}`);
  await daemon.tool('start_session', { session_id: 's-gone', cwd: '/tmp' });
  await daemon.tool('start_ghap', { session_id: 's-gone', domain: 'debugging', strategy: 'read-the-error', goal: 'Left half done', hypothesis: 'It is', action: 'Look', prediction: 'It is seen' });
  await daemon.tool('end_session', { session_id: 's-gone' });
  const bad = await daemon.task('make all', []);
  await daemon.end(bad, { status: 'failed', exit_code: 2 });
  const tab = await Tab.signedIn(daemon);
  const needs = { failed: 'make all', undeliverable: 'Are you there?', orphan: 'Left half done' };
  for (const [kind, text] of Object.entries(needs)) await tab.has(text);
  const rows = await tab.page.$$eval('.need', (all) => all.map((each) => [each.querySelector('.state').innerText.trim(), each.querySelectorAll('.do a, .do button').length]));
  assert.deepEqual(rows, Object.keys(needs).map((kind) => [kind, 1]), 'the most urgent first, each with one action');
  await axe(tab, 'what needs a person');
  assert.equal(await tab.page.$eval('nav .count', (count) => count.innerText), '3');
  await tab.has('to bob', 10_000, '.needs');
  const isLeft = (count) => tab.page.waitForFunction((wanted) => document.querySelectorAll('.need').length === wanted, { timeout: 10_000, polling: 50 }, count);
  // A failure that was looked at needs nobody any more.
  await tab.click('Read output');
  await tab.page.waitForFunction((wanted) => location.pathname === wanted, { timeout: 5000 }, `/ui/tasks/${bad}`);
  await tab.has('exit 2');
  await tab.view('/');
  await isLeft(2);
  await tab.click('Are you there?');
  await tab.page.waitForFunction(() => location.search.startsWith('?message='), { timeout: 5000 });
  await tab.has('ann asks bob');
  await tab.view('/');
  await isLeft(2);
  await tab.click('Mark as seen');
  await isLeft(1);
  await tab.view('/');
  await isLeft(1);
  // A record is given up only after a yes.
  const record = async () => (await daemon.get('/v1/ghap')).ghap.find((each) => each.goal === 'Left half done');
  await tab.click('Give up');
  await tab.has('Give this record up?');
  assert.notEqual((await record())?.status, 'abandoned');
  await tab.click('Yes');
  await tab.has('Nothing needs you.');
  assert.equal((await record()).status, 'abandoned');
  assert.deepEqual(tab.problems, []);
});

test('a record whose session is over is given up on the command line', async (daemon) => {
  await daemon.tool('start_session', { session_id: 's-gone', cwd: '/tmp' });
  const { id } = await daemon.tool('start_ghap', { session_id: 's-gone', domain: 'debugging', strategy: 'read-the-error', goal: 'Left half done', hypothesis: 'It is', action: 'Look', prediction: 'It is seen' });
  assert.throws(() => daemon.svc('ghap', 'abandon', id), /still works on it/);
  await daemon.tool('end_session', { session_id: 's-gone' });
  assert.match(daemon.svc('ghap', 'abandon', id, '--reason', 'the branch was dropped'), /gave up .*Left half done/);
  const record = await daemon.get(`/v1/ghap/${id}`);
  assert.deepEqual([record.status, record.result], ['abandoned', 'the branch was dropped']);
  assert.throws(() => daemon.svc('ghap', 'abandon', id), /has ended: it is abandoned/);
});

test('a file of a project that waits for approval shows what it runs, and runs it after a yes', async (daemon) => {
  const project = path.join(daemon.home, 'shop');
  fs.mkdirSync(path.join(project, '.git'), { recursive: true });
  const file = path.join(project, '.mcp.json');
  const toy = path.join(import.meta.dirname, 'toy.mjs');
  fs.writeFileSync(file, JSON.stringify({ mcpServers: { greeter: { command: process.execPath, args: [toy], env: { WHO: '${GREETED:-all}' } } } }));
  await daemon.tool('start_session', { session_id: 's-shop', cwd: project, client: 'claude-code' });
  const tab = await Tab.signedIn(daemon);
  await tab.has(`${file} wants to run a server`);
  await tab.has(`${process.execPath} ${toy}; it is given GREETED`);
  assert.equal(await tab.page.$$eval('.need .do a, .need .do button', (all) => all.length), 1);
  await axe(tab, 'a file that waits');
  await tab.click('Approve');
  await tab.has('Run this server for sessions in this project?');
  // What was shown is not what would run any more.
  fs.writeFileSync(file, JSON.stringify({ mcpServers: { greeter: { command: process.execPath, args: [toy] } } }));
  await tab.click('Yes');
  await tab.page.waitForFunction(() => !document.querySelector('.approval'), { timeout: 10_000 });
  const state = async () => (await daemon.get(`/v1/sources?project=${encodeURIComponent(project)}`)).sources[0].state;
  assert.equal(await state(), 'pending_approval');
  await tab.view('/');
  await tab.has('wants to run a server');
  await tab.click('Approve');
  await tab.has('Run this server for sessions in this project?');
  await tab.click('Yes');
  await tab.has('Nothing needs you.');
  await until(state, (now) => now === 'connected', 'it runs');
  const isRefusal = (problem) => problem.includes('409');
  assert.deepEqual(tab.problems.filter((problem) => !isRefusal(problem)), []);
});

test('an agent that works stands before one that waits, and one that left behind a switch', async (daemon) => {
  await daemon.configure('[agents.asker]', 'backend = "acp"', `command = [${JSON.stringify(process.execPath)}, ${JSON.stringify(path.join(import.meta.dirname, 'asker.mjs'))}]`);
  const gone = await daemon.peer('gone');
  await daemon.post(`/v1/peers/${gone.peer_id}/heartbeat`, { status: 'offline' });
  await daemon.peer('ann');
  const asks = await daemon.post('/v1/hosts', { instance: 'asker', name: 'asks', cwd: daemon.home, prompt: 'clean up' });
  const works = await daemon.post('/v1/hosts', { instance: 'asker', name: 'works', cwd: daemon.home, prompt: 'hello' });
  await until(() => daemon.get(`/v1/hosts/${works.id}`), (host) => host.state === 'idle', 'it has said hello');
  await daemon.post(`/v1/hosts/${works.id}/send`, { input: 'wait' });
  await until(() => daemon.get(`/v1/hosts/${asks.id}`), (host) => host.state === 'requires_action', 'it asks');
  await until(() => daemon.get(`/v1/hosts/${works.id}`), (host) => host.state === 'running', 'it works');
  const [peer] = (await daemon.get('/v1/peers')).peers.filter((each) => each.session_id === works.session_key);
  await daemon.post(`/v1/peers/${peer.peer_id}/messages`, { text: 'when you are done' });
  const tab = await Tab.signedIn(daemon);
  const rows = () => tab.page.$$eval('.team tbody tr', (all) => all.map((each) => each.querySelector('th a').innerText));
  await until(rows, (all) => all.join() === 'asker:works,asker:asks,ann', 'who works first');
  // What it is saying, and the message that it has not read yet.
  await tab.page.waitForFunction(() => {
    const cells = [...document.querySelectorAll('.team tbody tr:first-child td')].map((each) => each.innerText);
    return cells[2] === 'waiting' && cells[4] === '1';
  }, { timeout: 10_000, polling: 50 });
  await tab.page.click('.switch input');
  await until(rows, (all) => all.join() === 'asker:works,asker:asks,ann,gone', 'and who left');
  await axe(tab, 'who is here');
  for (const host of [asks, works]) await daemon.post(`/v1/hosts/${host.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

test('a session that waits at its own terminal needs a person', async (daemon) => {
  const ann = await daemon.peer('ann');
  const tab = await Tab.signedIn(daemon);
  await tab.has('ann');
  // As the daemon tells of it: what a client's hooks say is tested where they are.
  await tab.page.evaluate(async (id) => {
    const { changed, state } = await import('/assets/store.js');
    const waiting = { kind: 'permission', since: new Date().toISOString(), title: 'touch made', tool: 'Bash' };
    state.peers.set(id, { ...state.peers.get(id), status: 'waiting', waiting_for: waiting });
    changed('peers');
  }, ann.peer_id);
  await tab.has('ann needs permission: Bash touch made');
  await tab.has('answer it in its terminal, in /work/ann');
  assert.equal(await tab.page.$eval('.team tbody td .state', (each) => each.innerText), 'waiting');
  await axe(tab, 'a session that waits');
  await tab.click('Show session');
  await tab.page.waitForFunction((id) => location.pathname === `/ui/agents/${id}`, { timeout: 5000 }, ann.peer_id);
  await tab.has('permission: Bash: touch made');
  assert.deepEqual(tab.problems, []);
});

test('a request is of the session that asks, and of none whose id ends alike', async (daemon) => {
  const ids = [];
  for (const [name, session] of [['ann', 's-1'], ['bob', 'x:s-1'], ['cid', 'c d']]) ids.push((await daemon.peer(name, { session_id: session })).peer_id);
  const tab = await Tab.signedIn(daemon);
  await tab.has('cid');
  await tab.page.evaluate(async ([ann, bob, cid]) => {
    const { changed, load, state } = await import('/assets/store.js');
    await load('requests');
    const waiting = { kind: 'permission', since: new Date().toISOString(), title: 'touch made', tool: 'Bash' };
    for (const id of [ann, bob, cid]) state.peers.set(id, { ...state.peers.get(id), status: 'waiting', waiting_for: waiting });
    const asks = (peer, key) => state.requests.set(peer, { request_id: peer, peer_id: peer, session_key: key, kind: 'permission', title: `asked by ${key}`, options: [], opened_at: waiting.since });
    asks(bob, 'agent:claude:x:s-1');
    asks(cid, 'agent:claude:c%20d');
    ['peers', 'requests'].forEach(changed);
  }, ids);
  await tab.has('asked by agent:claude:c%20d');
  await tab.has('ann needs permission');
  assert.equal(await tab.page.$$eval('.needs .need', (all) => all.length), 3);
  assert.deepEqual(tab.problems, []);
});

test('what changes while a list is read stays', async (daemon) => {
  const ann = await daemon.peer('ann');
  const tab = await Tab.signedIn(daemon);
  await tab.has('ann');
  await tab.page.evaluate(async () => {
    const { load } = await import('/assets/store.js');
    const real = globalThis.fetch;
    const gate = new Promise((done) => { globalThis.pass = done; });
    const answered = new Promise((done) => {
      globalThis.fetch = async (...call) => {
        const reply = await real(...call);
        if (!String(call[0]).startsWith('/v1/peers?')) return reply;
        done();
        await gate;
        return reply;
      };
    });
    globalThis.reading = load('peers');
    await answered;
    globalThis.fetch = real;
  });
  await daemon.post(`/v1/peers/${ann.peer_id}/heartbeat`, { status: 'busy' });
  await tab.has('busy');
  const status = await tab.page.evaluate(async (id) => {
    const { state } = await import('/assets/store.js');
    globalThis.pass();
    await globalThis.reading;
    return state.peers.get(id).status;
  }, ann.peer_id);
  assert.equal(status, 'busy', 'the list is older than the event');
  assert.deepEqual(tab.problems, []);
});

test('of a long list the oldest goes first, and a limit is the last that was told', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  const [until, first] = await tab.page.evaluate(async () => {
    const { load, state } = await import('/assets/store.js');
    const real = globalThis.fetch;
    const page = (body) => new Response(JSON.stringify(body), { headers: { 'Content-Type': 'application/json' } });
    globalThis.fetch = async (...call) => {
      const { pathname, searchParams } = new URL(call[0], location.href);
      if (pathname === '/v1/hosts') return page({ hosts: [{ id: 'ag_1', state: 'limited', backend: 'claude' }], count: 1 });
      if (pathname === '/v1/tasks') return page({ tasks: ['new', 'old'].map((id) => ({ task_id: id, status: 'done', created_at: '2026-01-01T00:00:00.000Z' })), count: 2 });
      if (pathname !== '/v1/events') return real(...call);
      // A page of one event: a stream is read by seq, whatever the position.
      const known = [{ seq: 500, position: 9000, data: { until: 1 } }, { seq: 501, position: 9001, data: { until: 4102444800000 } }];
      const after = Number(searchParams.get('after'));
      return page({ events: known.filter((event) => event.seq > after).slice(0, 1), count: 1 });
    };
    await load('hosts');
    await load('tasks');
    globalThis.fetch = real;
    return [state.hosts.get('ag_1').limited_until, [...state.tasks.keys()][0]];
  });
  assert.equal(until, 4102444800000);
  // Rows are let go of from the beginning.
  assert.equal(first, 'old');
});

test('an address that does not decode shows its view', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/agents/%E0%A4%A');
  await tab.has('There is no such agent.');
  assert.deepEqual(tab.problems, []);
});

test('a person replies in a thread, and an answer is read when it was seen', async (daemon) => {
  const ann = await daemon.peer('ann');
  const question = await daemon.post(`/v1/peers/operator/messages`, { text: 'Which port?', from_peer: ann.peer_id, type: 'query' });
  const told = await daemon.post(`/v1/peers/operator/messages`, { text: 'I took 8080.', from_peer: ann.peer_id });
  const tab = await Tab.signedIn(daemon);
  await tab.has('Who is here');
  const state = async (message) => (await daemon.get(`/v1/messages/${message.id}`)).state;
  assert.notEqual(await state(told), 'acked', 'nobody has seen it');
  await tab.view(`/ui/messages?peer=${ann.peer_id}`);
  await tab.has('I took 8080.');
  await until(() => state(told), (now) => now === 'acked', 'it is read');
  assert.notEqual(await state(question), 'acked', 'a question is open until it is answered');
  await tab.page.$$eval('.message', (all) => [...all.find((each) => each.innerText.includes('Which port?')).querySelectorAll('button')].find((each) => each.innerText === 'Reply').click());
  await tab.has('Reply to');
  await axe(tab, 'a reply');
  await tab.page.type('.compose textarea', '8081');
  await tab.page.click('.compose button.primary');
  await tab.has('you answer ann');
  const [answer] = (await daemon.get(`/v1/peers/${ann.peer_id}/messages?peek=true`)).messages;
  assert.deepEqual([answer.text, answer.type, answer.correlation_id], ['8081', 'response', question.id]);
  await until(() => state(question), (now) => now === 'acked', 'its answer acknowledges it');
  assert.deepEqual(tab.problems, []);
});

test('a gap says what is gone', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  const texts = await tab.page.evaluate(async () => {
    const { goneEvents } = await import('/assets/store.js');
    return [goneEvents(96, 205), goneEvents(96, 98), goneEvents(96, 97), goneEvents(96, 7)];
  });
  assert.deepEqual(texts, ['events 97 to 204 are gone', 'event 97 is gone', 'some of the events after 96 are gone', 'some of the events after 96 are gone']);
});

for (const width of [360, 390]) {
  test(`${width} px: all eight views are in reach, and one bar scrolls`, async (daemon) => {
    await fill(daemon);
    const tab = await Tab.signedIn(daemon, { width, height: 780 });
    for (const view of VIEWS) {
      await tab.view(at(view));
      await tab.page.waitForFunction(() => !document.querySelector('main .loading'), { timeout: 10_000 });
      const found = await tab.page.evaluate(() => {
        const links = [...document.querySelectorAll('nav a')].map((each) => each.getBoundingClientRect());
        const scrolls = [...document.querySelectorAll('html, body, body *')].filter((each) => {
          const { overflowY } = getComputedStyle(each);
          const canScroll = each === document.documentElement ? overflowY !== 'hidden' : /auto|scroll/.test(overflowY);
          return canScroll && each.scrollHeight > each.clientHeight + 1 && each.clientHeight > 0 && !each.closest('textarea, pre, select');
        });
        return { inside: links.filter((box) => box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight).length, scrolls: scrolls.map((each) => each.className || each.tagName) };
      });
      assert.equal(found.inside, 8, view);
      assert.ok(found.scrolls.length <= 1, `${view}: ${found.scrolls}`);
    }
    await tab.view('/ui/log');
    await tab.has('terminal');
    assert.match(await tab.page.$eval('.events .row .at', (each) => (each.offsetParent ? each.innerText : '')), /^\d\d:\d\d:\d\d$/);
    assert.deepEqual(tab.problems, []);
  });
}

test('times are relative, and exact on hover; messages of one peer; the log from a time', async (daemon) => {
  const { ann } = await fill(daemon);
  const cy = await daemon.peer('cy');
  await daemon.post(`/v1/peers/${cy.peer_id}/messages`, { text: 'not of ann' });
  const tab = await Tab.signedIn(daemon);
  await tab.has('Find the flaky test');
  const times = await tab.page.$$eval('main time', (all) => all.map((each) => [each.innerText, each.title, each.dateTime]));
  assert.ok(times.length > 1);
  for (const [text, title, at] of times) assert.ok(/^(now|\d+ (s|min|h|d))/.test(text) && title.includes(at) && !Number.isNaN(Date.parse(at)), `${text} ${title}`);
  await tab.view('/ui/messages');
  await tab.has('not of ann');
  await tab.view(`/ui/messages?peer=${ann.peer_id}`);
  await tab.has('It does since yesterday.');
  assert.ok(!(await tab.text()).includes('not of ann'));
  // From a moment between two events: the first after it is chosen.
  await new Promise((done) => setTimeout(done, 2100));
  const moment = new Date(Date.now() - 500);
  const late = await daemon.task('much later', []);
  const [first] = (await daemon.get(`/v1/events?stream=task/${late}&limit=1`)).events;
  await tab.view('/ui/log');
  await tab.has('much later');
  const local = new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  await tab.page.$eval('input[type="datetime-local"]', (input, value) => {
    input.value = value;
    input.dispatchEvent(new Event('change', { bubbles: true }));
  }, local);
  await tab.page.waitForFunction((position) => location.pathname === `/ui/log/${position}`, { timeout: 10_000 }, first.position);
  // Only one kind.
  await tab.view('/ui/log?kind=terminal');
  await tab.has('terminal');
  const kinds = await tab.page.$$eval('.events .row .kind', (all) => [...new Set(all.map((each) => each.innerText))]);
  assert.deepEqual(kinds, ['terminal']);
  assert.deepEqual(tab.problems, []);
});

test('health names the last backup and how long commits take', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/health');
  await tab.has('makes one while the daemon runs');
  await tab.has('Commit, p99');
  const copy = path.join(daemon.home, 'copy.db');
  daemon.svc('backup', copy);
  await tab.click('Read again');
  await tab.has(copy);
  const facts = await tab.page.$$eval('.facts', (all) => all.map((each) => each.innerText).join('\n'));
  for (const fact of ['Commit, median', 'Size on disk', 'free; how fast the database grows is known after a day', 'Readers of streams']) assert.ok(facts.includes(fact), facts);
  assert.match(facts, /Commit, p99\s+≤ [\d.]+ ms/);
  // As if it had been empty a day ago.
  const sample = `insert into store_size values (${Date.now() - 90_000_000}, 0)`;
  if (spawnSync('sqlite3', [path.join(daemon.home, 'svc.db'), sample]).status === 0) {
    await tab.click('Read again');
    await tab.has('free; the database grows by');
  }
  await axe(tab, 'health');
  assert.deepEqual(tab.problems, []);
});

test('the operator writes from the page, and a task is cancelled only after a yes', async (daemon) => {
  const ann = await daemon.peer('ann');
  const task = await daemon.task('sleep', []);
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/messages?peer=${ann.peer_id}`);
  await tab.page.waitForFunction((id) => document.querySelector('.compose select')?.value === id, {}, ann.peer_id);
  await tab.page.type('.compose textarea', 'please look at #12');
  await tab.click('Send');
  await tab.has('please look at #12');
  const [message] = (await daemon.get(`/v1/peers/${ann.peer_id}/messages?peek=true`)).messages;
  assert.deepEqual([message.text, message.from_peer], ['please look at #12', 'operator']);
  await tab.view(`/ui/tasks/${task}`);
  await tab.has('Cancel');
  await tab.click('Cancel');
  assert.equal((await daemon.get(`/v1/tasks/${task}`)).status, 'pending');
  await tab.click('No');
  await tab.click('Cancel');
  await tab.click('Yes');
  await tab.has('cancelled', 10_000, '.detail');
  assert.equal((await daemon.get(`/v1/tasks/${task}`)).status, 'cancelled');
  assert.deepEqual(tab.problems, []);
});

test('kill -9 and restart while the page is open: nothing is missing and nothing comes twice', async (daemon) => {
  const task = await daemon.task('long', Array.from({ length: 50 }, (_, n) => `line ${n}`));
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/tasks/${task}`);
  await tab.has('line 49');
  await daemon.kill();
  await tab.page.waitForFunction(() => document.querySelector('.connection .state')?.textContent.startsWith('away'), { timeout: 20_000 });
  await daemon.run();
  await daemon.print(task, Array.from({ length: 50 }, (_, n) => `line ${n + 50}`));
  await tab.live();
  await daemon.print(task, Array.from({ length: 50 }, (_, n) => `line ${n + 100}`));
  await tab.has('line 149');
  const seen = new Set();
  const order = [];
  for (let top = 0; top <= 150 * 20; top += 200) {
    await tab.page.$eval('.output', (list, to) => { list.scrollTop = to; }, top);
    await new Promise((done) => setTimeout(done, 60));
    for (const line of await tab.page.$$eval('.output .row', (rows) => rows.map((row) => [Number(row.style.top.replace('px', '')), row.innerText.match(/line \d+/)?.[0]]))) {
      if (!seen.has(line[0])) order.push(line);
      seen.add(line[0]);
    }
  }
  order.sort((one, other) => one[0] - other[0]);
  assert.deepEqual(order.map(([, text]) => text), Array.from({ length: 150 }, (_, n) => `line ${n}`));
  await tab.page.keyboard.press('g');
  await tab.page.keyboard.press('l');
  // The list is at its end, and what belongs between the lines is further up.
  await tab.page.type('main [data-search]', 'no such event');
  await tab.has('The daemon was away for');
});

test('a database that was restored shows as a gap', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/log');
  await daemon.kill();
  for (const name of fs.readdirSync(daemon.home)) if (/^svc\.db(-wal)?$/.test(name)) fs.copyFileSync(path.join(daemon.home, name), path.join(daemon.home, `old-${name}`));
  await daemon.run();
  await tab.live();
  await daemon.task('after the copy', Array.from({ length: 30 }, (_, n) => `line ${n}`));
  await tab.has('line 29');
  await daemon.kill();
  for (const name of fs.readdirSync(daemon.home)) if (/^svc\.db(-wal|-shm)?$/.test(name)) fs.rmSync(path.join(daemon.home, name));
  for (const name of fs.readdirSync(daemon.home)) if (name.startsWith('old-')) fs.renameSync(path.join(daemon.home, name), path.join(daemon.home, name.slice(4)));
  await daemon.run();
  await tab.has('A gap', 20_000);
  await tab.live();
  await daemon.task('goes on', []);
  await tab.has('goes on');
});

/** Waits until the daemon says so. */
async function until(ask, is, what) {
  for (const end = Date.now() + 15_000; ;) {
    const answer = await ask();
    if (is(answer)) return answer;
    if (Date.now() > end) throw new Error(`${what}: ${JSON.stringify(answer)}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

test('an agent is started, told, watched and stopped from the page', async (daemon) => {
  await daemon.configure('[agents.lines]', 'backend = "exec"', `command = ["sh", "-c", 'while read line; do echo "got <b>$line</b>"; done']`);
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/agents');
  await tab.has('No agent has been here yet.');
  await tab.has('lines');
  await tab.click('Start one');
  await tab.page.waitForSelector('dialog[open]');
  await axe(tab, 'start an agent');
  // What works is chosen already.
  assert.equal(await tab.page.$eval('dialog select', (select) => select.value), 'lines');
  const field = (label) => tab.page.evaluateHandle((wanted) => [...document.querySelectorAll('dialog label')].find((each) => each.innerText.startsWith(wanted)).querySelector('input, textarea'), label);
  await (await field('Folder')).type(daemon.home);
  await (await field('Prompt')).type('first words');
  await tab.page.$$eval('dialog button', (all) => all.find((each) => each.innerText === 'Start').click());
  const [agent] = await until(async () => (await daemon.get('/v1/hosts')).hosts ?? (await daemon.get('/v1/hosts')).agents, (all) => all?.length === 1, 'one agent');
  await tab.has('agent:lines:main');
  assert.equal(new URL(tab.page.url()).pathname, `/ui/agents/${agent.id}`);
  await tab.has('got <b>first words</b>');
  await tab.page.type('textarea[aria-label="Prompt"]', 'second words');
  await tab.click('Send');
  await tab.has('got <b>second words</b>');
  // What another says shows here as it comes.
  await daemon.post(`/v1/hosts/${agent.id}/send`, { input: 'from elsewhere' });
  await tab.has('got <b>from elsewhere</b>');
  await axe(tab, 'an agent');
  const texts = await tab.page.$$eval('.entry', (all) => all.map((each) => each.innerText));
  assert.equal(texts.filter((each) => each.includes('got <b>second words')).length, 1, texts.join('\n'));
  assert.equal(await tab.page.$$eval('.entry b', (all) => all.length), 0);
  await tab.view(`/ui/agents/${agent.id}`);
  for (const words of ['first words', 'second words', 'from elsewhere']) await tab.has(`got <b>${words}</b>`);
  await tab.click('Stop');
  await tab.has('Stop this agent?');
  assert.notEqual((await daemon.get(`/v1/hosts/${agent.id}`)).state, 'done');
  await tab.click('Yes');
  await until(() => daemon.get(`/v1/hosts/${agent.id}`), (host) => host.state === 'done', 'stopped');
  await tab.page.waitForFunction(() => document.querySelector('.detail .state')?.innerText === 'done', { timeout: 10_000 });
  assert.equal(await tab.page.$('textarea[aria-label="Prompt"]'), null);
  assert.deepEqual(tab.problems, []);
});

test('a permission is answered from the page while an agent waits', async (daemon) => {
  await daemon.configure('[agents.asker]', 'backend = "acp"', `command = [${JSON.stringify(process.execPath)}, ${JSON.stringify(path.join(import.meta.dirname, 'asker.mjs'))}]`);
  const tab = await Tab.signedIn(daemon);
  const agent = await daemon.post('/v1/hosts', { instance: 'asker', cwd: daemon.home, prompt: 'clean up' });
  // What would be done, and beside it what the agent calls it.
  await tab.has('Remove <i>build</i>?');
  assert.deepEqual(await tab.page.$eval('.need .what', (each) => [each.querySelector('a').innerText, each.querySelector('code').innerText]), ['asker', 'build']);
  await axe(tab, 'now, with a request');
  await shot(tab, 'now-with-request');
  // What holds for good is asked once.
  await tab.click('Always allow');
  await tab.has('Always allow? This holds from now on.');
  assert.equal((await daemon.get('/v1/requests?open=true')).count, 1);
  await tab.click('No');
  await tab.click('Allow once');
  await tab.has('Nothing needs you.');
  await tab.view(`/ui/agents/${agent.id}`);
  await tab.has('chosen: yes');
  // The same beside what was said.
  await daemon.post(`/v1/hosts/${agent.id}/send`, { input: 'once more' });
  await tab.page.waitForSelector('.detail .need');
  await axe(tab, 'an agent with a request');
  await shot(tab, 'agent-with-request');
  await tab.click('Reject');
  await tab.has('chosen: no');
  await tab.page.waitForSelector('.detail .need', { hidden: true });
  const { requests } = await daemon.get('/v1/requests');
  assert.deepEqual(requests.map((each) => [each.answer.option_id, each.answer.by ?? each.answer.answered_by]).sort(), [['no', 'operator'], ['yes', 'operator']]);
  // One that another answers goes by itself.
  await daemon.post(`/v1/hosts/${agent.id}/send`, { input: 'and again' });
  await tab.page.waitForSelector('.detail .need');
  const open = await daemon.get('/v1/requests?open=true');
  await daemon.post(`/v1/requests/${open.requests[0].request_id}/answer`, { option_id: 'yes' });
  await tab.page.waitForFunction(() => !document.querySelector('.need'), { timeout: 10_000 });
  await daemon.post(`/v1/hosts/${agent.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

test('what a tool did is folded, and a change is coloured', async (daemon) => {
  await daemon.configure('[agents.asker]', 'backend = "acp"', `command = [${JSON.stringify(process.execPath)}, ${JSON.stringify(path.join(import.meta.dirname, 'asker.mjs'))}]`);
  const agent = await daemon.post('/v1/hosts', { instance: 'asker', cwd: daemon.home, prompt: 'edit' });
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/agents/${agent.id}`);
  await tab.has('edited');
  await tab.page.waitForSelector('details.entry.tool');
  const folded = await tab.page.$$eval('details.entry.tool', (all) => all.map((each) => each.open));
  assert.deepEqual(folded, [false], 'a call and its result are one row');
  const call = await tab.page.$eval('details.entry.tool summary', (each) => each.innerText.replace(/\s+/g, ' '));
  assert.match(call, /^\d\d:\d\d:\d\d ✓.* edit notes \d+ m?s$/);
  await tab.page.$$eval('details.entry.tool summary', (all) => all.forEach((each) => each.click()));
  await tab.page.waitForSelector('.diff .plus');
  const lines = (kind) => tab.page.$$eval(`.diff .${kind}`, (all) => all.map((each) => each.innerText.trim()));
  assert.deepEqual([await lines('minus'), await lines('plus'), await lines('at')], [['-old <i>line</i>'], ['+new line'], ['@@ -1 +1 @@']]);
  const colours = await tab.page.$$eval('.diff .minus, .diff .plus', (all) => all.map((each) => getComputedStyle(each).color));
  assert.equal(new Set(colours).size, 2, `${colours}`);
  await axe(tab, 'an agent with a change');
  await daemon.post(`/v1/hosts/${agent.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

test('records are searched, by their words and their outcome', async (daemon) => {
  for (const [session, goal] of [['s-1', 'Find the flaky clock'], ['s-2', 'Shrink the container image']]) {
    await daemon.tool('start_ghap', { session_id: session, domain: 'debugging', strategy: 'read-the-error', goal, hypothesis: `${goal} by reading`, action: 'Read', prediction: 'It is found' });
    await daemon.tool('resolve_ghap', { session_id: session, status: session === 's-1' ? 'confirmed' : 'falsified', result: 'Seen', ...(session === 's-2' && { surprise: 'It grew', root_cause: { category: 'wrong-assumption', description: 'layers' } }) });
  }
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/journal');
  await tab.has('Find the flaky clock');
  await tab.has('Shrink the container image');
  const goals = () => tab.page.$$eval('.records a.title', (all) => all.map((each) => each.innerText));
  await tab.page.keyboard.press('/');
  await tab.page.keyboard.type('container image');
  await until(goals, (all) => all.length > 0 && all[0] === 'Shrink the container image' && !all.includes('Find the flaky clock'), 'what is searched for');
  // One that is open, too.
  await daemon.tool('start_ghap', { session_id: 's-3', domain: 'debugging', strategy: 'read-the-error', goal: 'Why does the zeppelin leak', hypothesis: 'A seam', action: 'Look', prediction: 'It is seen' });
  await tab.view('/ui/journal');
  await tab.has('zeppelin');
  await tab.page.keyboard.press('/');
  await tab.page.keyboard.type('zeppelin');
  await until(goals, (all) => all.length === 1 && all[0] === 'Why does the zeppelin leak', 'an open record');
  await daemon.tool('end_session', { session_id: 's-3' });
  await tab.view('/ui/journal?status=confirmed');
  await until(goals, (all) => all.length === 1 && all[0] === 'Find the flaky clock', 'what was confirmed');
  assert.deepEqual(tab.problems, []);
});

test('records that belong together are shown together', async (daemon) => {
  await fill(daemon);
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/journal');
  await tab.click('Clusters');
  await tab.page.waitForSelector('.clusters li', { timeout: 10_000 });
  assert.equal(await tab.page.$eval('.clusters li .strong', (each) => each.innerText), 'cache, loses, tenant');
  await axe(tab, 'clusters');
  await tab.page.click('.clusters li button');
  await tab.page.waitForFunction(() => document.querySelectorAll('.clusters li li a').length > 1, { timeout: 10_000, polling: 50 });
  const goals = await tab.page.$$eval('.clusters li li a', (all) => all.map((each) => each.innerText));
  assert.ok(goals.every((goal) => goal.startsWith('The cache loses tenant')), goals.join('\n'));
  assert.deepEqual(tab.problems, []);
});

test('a turn is interrupted from the page', async (daemon) => {
  await daemon.configure('[agents.asker]', 'backend = "acp"', `command = [${JSON.stringify(process.execPath)}, ${JSON.stringify(path.join(import.meta.dirname, 'asker.mjs'))}]`);
  const agent = await daemon.post('/v1/hosts', { instance: 'asker', cwd: daemon.home, prompt: 'wait' });
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/agents/${agent.id}`);
  await tab.page.waitForFunction(() => document.querySelector('.detail .state')?.innerText === 'running', { timeout: 10_000 });
  await tab.click('Interrupt');
  await until(() => daemon.get(`/v1/hosts/${agent.id}`), (host) => host.state === 'idle', 'its turn is over');
  await tab.page.waitForFunction(() => document.querySelector('.detail .state')?.innerText === 'idle', { timeout: 10_000 });
  await daemon.post(`/v1/hosts/${agent.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

/** Waits until what was said in an agent has this text. */
function showsInHistory(page, text) {
  return page.waitForFunction((wanted) => document.querySelector('.history')?.innerText.includes(wanted), { timeout: 30_000, polling: 50 }, text)
    .catch(async () => { throw new Error(`no "${text}" in ${await page.evaluate(() => document.body.innerText)}`); });
}

test('words show while they are said, from their beginning in a tab that joins later', async (daemon) => {
  await daemon.configure('[agents.asker]', 'backend = "acp"', `command = [${JSON.stringify(process.execPath)}, ${JSON.stringify(path.join(import.meta.dirname, 'asker.mjs'))}]`);
  const agent = await daemon.post('/v1/hosts', { instance: 'asker', cwd: daemon.home, prompt: 'count' });
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/agents/${agent.id}`);
  await showsInHistory(tab.page, 'word 1. word 2. word 3.');
  // One that is opened in the background hears from the first what comes.
  const other = await tab.another(`/ui/agents/${agent.id}`, { isHidden: true });
  await showsInHistory(other, 'word 1. word 2. word 3.');
  const count = async (page) => Math.max(0, ...[...(await page.evaluate(() => document.querySelector('.history').innerText)).matchAll(/word (\d+)\./g)].map((found) => Number(found[1])));
  const next = (await count(other)) + 2;
  for (const page of [tab.page, other]) await showsInHistory(page, `word ${next}.`);
  const { events } = await daemon.get(`/v1/events?stream=agent/${agent.id}&kind=chat_entry`);
  assert.ok(!JSON.stringify(events).includes('word 1.'), 'all of this was said by deltas alone');
  await daemon.post(`/v1/hosts/${agent.id}/interrupt`);
  await until(() => daemon.get(`/v1/hosts/${agent.id}`), (host) => host.state === 'idle', 'its turn is over');
  for (const page of [tab.page, other]) {
    await page.waitForFunction(() => document.querySelector('.detail .state')?.innerText === 'idle', { timeout: 30_000, polling: 50 });
    await showsInHistory(page, 'word 1. word 2. word 3.');
    const text = await page.evaluate(() => document.querySelector('.history').innerText);
    const said = [...text.matchAll(/word (\d+)\./g)].map((found) => Number(found[1]));
    assert.deepEqual(said, said.map((_, index) => index + 1), 'each word once, in order');
  }
  await daemon.post(`/v1/hosts/${agent.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

test('words go into a turn that is under way', async (daemon) => {
  await daemon.configure('[agents.lines]', 'backend = "exec"', 'turn_end = "over"', `command = ["sh", "-c", 'while read line; do echo "got $line"; [ "$line" = end ] && echo over; done']`);
  const agent = await daemon.post('/v1/hosts', { instance: 'lines', cwd: daemon.home, prompt: 'one' });
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/agents/${agent.id}`);
  await tab.page.waitForFunction(() => document.querySelector('.detail .state')?.innerText === 'running', { timeout: 10_000 });
  // Lines that a tab has stay while others join: they are events, and come once.
  const isLive = () => document.querySelector('.connection .state')?.textContent === 'live';
  const steer = (input) => daemon.post(`/v1/hosts/${agent.id}/send`, { input, mode: 'steer' });
  const other = await tab.another(`/ui/agents/${agent.id}`, { isHidden: true });
  await other.waitForFunction(isLive, { timeout: 30_000, polling: 50 });
  await other.waitForFunction(() => /one|Nothing was said yet/.test(document.querySelector('.history')?.innerText), { timeout: 30_000, polling: 50 });
  await steer('two');
  await showsInHistory(other, 'got two');
  const third = await tab.another('/', { isHidden: true });
  await third.waitForFunction(isLive, { timeout: 30_000, polling: 50 });
  await steer('three');
  await showsInHistory(other, 'got three');
  assert.match(await other.evaluate(() => document.querySelector('.history').innerText), /got two/);
  // A tab that lies behind another is clicked at in vain.
  await tab.page.bringToFront();
  await tab.page.type('textarea[aria-label="Prompt"]', 'end');
  await tab.click('Steer');
  await tab.has('got end');
  await tab.page.waitForFunction(() => document.querySelector('.detail .state')?.innerText === 'idle', { timeout: 10_000 });
  await daemon.post(`/v1/hosts/${agent.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

/** What stands for Claude Code: this script answers each prompt, which is in `$line`. */
async function configureClaude(daemon, answer) {
  const ready = { type: 'control_response', response: { subtype: 'success', request_id: 'svc-initialize', response: {} } };
  const begun = { type: 'system', subtype: 'init', session_id: 's-1' };
  const program = path.join(daemon.home, 'claude.sh');
  fs.writeFileSync(program, `read -r line\necho '${JSON.stringify(ready)}'\nread -r line\necho '${JSON.stringify(begun)}'\n${answer}\nwhile read -r line; do\n${answer}\ndone\n`);
  await daemon.configure('[agents.claude]', 'backend = "claude"', `command = ["sh", ${JSON.stringify(program)}]`);
}

test('what was said in an agent is read back to its start, in order and once', async (daemon) => {
  const count = `awk -v from=$2 -v to=$4 'BEGIN { for (n = from; n <= to; n++) printf "{\\"type\\":\\"assistant\\",\\"message\\":{\\"id\\":\\"m%d\\",\\"content\\":[{\\"type\\":\\"text\\",\\"text\\":\\"word %d.\\"}]}}\\n", n, n }'`;
  await configureClaude(daemon, `set -- $(echo "$line" | grep -o 'from [0-9]* to [0-9]*'); ${count}; echo '{"type":"result","subtype":"success"}'`);
  const agent = await daemon.post('/v1/hosts', { instance: 'claude', cwd: daemon.home, prompt: 'from 1 to 1000' });
  const total = async () => (await daemon.get(`/v1/hosts/${agent.id}/history?limit=1`)).total;
  await until(total, (said) => said >= 1000, 'all was said');
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/agents/${agent.id}`);
  await tab.has('word 1000.');
  // What comes meanwhile takes nothing of the past away.
  await daemon.post(`/v1/hosts/${agent.id}/send`, { input: 'from 1001 to 1700' });
  await tab.has('word 1700.');
  const shown = () => tab.page.$$eval('.entry.assistant', (all) => all.flatMap((each) => each.innerText.match(/word \d+\./g) ?? []).map((word) => parseInt(word.slice(5), 10)));
  const isThere = () => tab.page.evaluate(() => [...document.querySelectorAll('.history button')].some((each) => each.innerText.trim() === 'Earlier'));
  for (let pages = 0; await isThere(); pages += 1) {
    assert.ok(pages < 10, 'the history has a start');
    const before = (await shown()).length;
    await tab.click('Earlier');
    await until(async () => (await shown()).length, (now) => now > before, 'more is shown');
  }
  assert.deepEqual(await shown(), Array.from({ length: 1700 }, (_, n) => n + 1));
  await daemon.post(`/v1/hosts/${agent.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

test('the log is read back to position 1, and nothing is left out', async (daemon) => {
  const task = await daemon.task('long', Array.from({ length: 2000 }, (_, n) => `line ${n}`));
  // Pages of large events are shorter than what was asked for.
  for (let n = 0; n < 12; n += 1) await daemon.print(task, [String(n).repeat(300_000)]);
  await daemon.print(task, Array.from({ length: 3500 }, (_, n) => `late ${n}`));
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/log');
  await tab.has('late 3499');
  const isEarlier = () => tab.page.evaluate(() => [...document.querySelectorAll('button')].some((each) => each.innerText === 'Earlier' && !each.disabled));
  const count = () => tab.page.$eval('.total', (each) => Number(each.innerText.replaceAll(',', '')));
  for (let pages = 0; await isEarlier(); pages += 1) {
    assert.ok(pages < 60, 'the log has a start');
    const before = await count();
    await tab.click('Earlier');
    await until(async () => (await count()) > before || !(await isEarlier()), Boolean, 'more is shown');
  }
  const seen = new Set();
  const height = await tab.page.$eval('.events', (list) => list.scrollHeight);
  for (let top = 0; top <= height; top += 400) {
    const rows = await tab.page.$eval('.events', async (list, to) => {
      list.scrollTop = to;
      await new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); });
      return [...list.querySelectorAll('.row')].map((row) => [parseInt(row.style.top, 10), row.querySelector('.position')?.innerText]).filter(([, position]) => position);
    }, top);
    for (const [at, position] of rows) seen.add(`${String(at).padStart(9, '0')} ${position}`);
  }
  const positions = [...seen].sort().map((each) => Number(each.split(' ')[1]));
  assert.deepEqual(positions, Array.from({ length: positions.length }, (_, n) => n + 1), 'in order, from 1, each once');
  assert.ok(positions.length > 5512, `${positions.length}`);
  assert.deepEqual(tab.problems, []);
});

test('a server that needs a login stands first, with what to do', async (daemon) => {
  const guarded = http.createServer((_, reply) => {
    reply.writeHead(401, { 'WWW-Authenticate': 'Bearer' });
    reply.end();
  });
  await new Promise((done) => guarded.listen(0, '127.0.0.1', done));
  await daemon.configure('[sources.web]', 'type = "http"', `url = "http://127.0.0.1:${guarded.address().port}/mcp"`);
  const tab = await Tab.signedIn(daemon);
  await tab.has('web needs a login');
  await tab.has('svc mcp login web');
  assert.deepEqual(await tab.page.$$eval('.need .do a, .need .do button', (all) => all.map((each) => each.innerText)), ['Log in']);
  await axe(tab, 'a server that needs a login');
  await tab.click('web needs a login');
  await tab.page.waitForFunction(() => location.pathname === '/ui/servers' && location.search.includes('web'), { timeout: 5000 });
  await tab.has('svc mcp login web');
  assert.deepEqual(tab.problems, []);
  guarded.close();
  guarded.closeAllConnections();
});

test('servers that are misconfigured, failed or changed stand under what needs a person', async (daemon) => {
  const refusing = http.createServer((_, reply) => {
    reply.writeHead(401, { 'WWW-Authenticate': 'Bearer' });
    reply.end();
  });
  await new Promise((done) => refusing.listen(0, '127.0.0.1', done));
  const toy = path.join(import.meta.dirname, 'toy.mjs');
  const says = path.join(daemon.home, 'says');
  await daemon.configure(
    '[sources.unset]', 'command = "x"', 'args = ["${NO_SUCH_VARIABLE}"]',
    '[sources.refused]', 'type = "http"', `url = "http://127.0.0.1:${refusing.address().port}/mcp"`, 'headers = { Authorization = "Bearer wrong" }',
    '[sources.toy]', `command = ${JSON.stringify(process.execPath)}`, `args = [${JSON.stringify(toy)}]`, `env = { SAYS = ${JSON.stringify(says)} }`,
  );
  const source = (name) => daemon.get(`/v1/sources/${name}`);
  await until(() => source('toy'), (row) => row.state === 'connected', 'it runs');
  const tab = await Tab.signedIn(daemon);
  await tab.has('unset is misconfigured');
  await tab.has('NO_SUCH_VARIABLE');
  await tab.has('refused does not start');
  fs.writeFileSync(says, 'Obeys somebody else');
  await daemon.post('/v1/sources/toy/reconnect', {});
  await tab.has('toy has changed a definition since it was approved');
  const actions = await tab.page.$$eval('.need .do a, .need .do button', (all) => all.map((each) => each.innerText));
  assert.deepEqual(actions.sort(), ['Review changes', 'Show entry', 'Start again']);
  await axe(tab, 'servers that need a person');
  await tab.click('Review changes');
  await tab.page.waitForFunction(() => location.pathname === '/ui/servers' && location.search.includes('toy'), { timeout: 30_000 });
  assert.deepEqual(tab.problems, []);
  refusing.close();
  refusing.closeAllConnections();
});

test('the tools of 26 servers are in reach, by server', async (daemon) => {
  const toy = path.join(import.meta.dirname, 'toy.mjs');
  await daemon.configure(...Array.from({ length: 26 }, (_, n) => [`[sources.s${n}]`, `command = ${JSON.stringify(process.execPath)}`, `args = [${JSON.stringify(toy)}]`]).flat());
  await until(async () => (await daemon.get('/v1/sources')).sources, (all) => all.filter((each) => each.state === 'connected').length === 26, 'all are connected');
  for (const width of [1280, 390]) {
    const tab = await Tab.signedIn(daemon, { width, height: 780 });
    await tab.view('/ui/servers');
    await tab.has('s25');
    await tab.page.$$eval('.tabs a', (all) => all.find((each) => each.innerText.startsWith('Tools')).click());
    await tab.has('svc itself');
    const groups = await tab.page.$$eval('.group > summary', (all) => all.map((each) => each.innerText.split(/\s+/)[0]));
    assert.equal(groups.length, 27);
    await tab.page.keyboard.press('/');
    await tab.page.keyboard.type('s17 greet');
    await tab.page.waitForFunction(() => document.querySelectorAll('.group .threads a').length === 1, { timeout: 60_000, polling: 50 });
    const box = await tab.page.$eval('.group .threads a', (each) => each.getBoundingClientRect().toJSON());
    assert.ok(box.height > 20 && box.bottom < 780, JSON.stringify(box));
    await tab.page.click('.group .threads a');
    await tab.page.waitForFunction(() => location.pathname === '/ui/servers/s17__greet', { timeout: 5000 });
    assert.deepEqual(tab.problems, []);
  }
});

test('an agent that its vendor refuses for usage stands first, with when it goes on', async (daemon) => {
  const resetsAt = Math.floor(Date.now() / 1000) + 7200;
  const limit = JSON.stringify({ type: 'rate_limit_event', rate_limit_info: { status: 'rejected', resetsAt } });
  await configureClaude(daemon, `echo '${limit}'`);
  const tab = await Tab.signedIn(daemon);
  const agent = await daemon.post('/v1/hosts', { instance: 'claude', cwd: daemon.home, prompt: 'go' });
  await until(() => daemon.get(`/v1/hosts/${agent.id}`), (host) => host.state === 'limited', 'limited');
  // As it happens, and for who opens the page later.
  for (const look of [() => {}, () => tab.view('/')]) {
    await look();
    await tab.has('claude: the vendor refuses for usage');
    await tab.has(`goes on `);
    await tab.has(new Date(resetsAt * 1000).toISOString());
  }
  assert.equal(await tab.page.$eval('.need .state', (each) => each.innerText.trim()), 'limited');
  assert.equal(await tab.page.$$eval('.need .do a, .need .do button', (all) => all.length), 1);
  await axe(tab, 'an agent at its limit');
  await tab.click('Send a prompt');
  await tab.page.waitForFunction((id) => location.pathname === `/ui/agents/${id}`, { timeout: 5000 }, agent.id);
  await daemon.post(`/v1/hosts/${agent.id}/stop`);
  assert.deepEqual(tab.problems, []);
});

test('the servers say what they do and what a person can do', async (daemon) => {
  const toy = path.join(import.meta.dirname, 'toy.mjs');
  const command = JSON.stringify(process.execPath);
  await daemon.configure(
    '[sources.toy]', `command = ${command}`, `args = [${JSON.stringify(toy)}]`,
    '[sources.broken]', 'command = "/nowhere/at/all"',
    '[sources.off]', `command = ${command}`, `args = [${JSON.stringify(toy)}]`, 'enabled = false',
  );
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/servers');
  const shows = (name, state) => tab.page.waitForFunction((...wanted) => [...document.querySelectorAll('.sources li')].some((row) => wanted.every((word) => row.innerText.includes(word))), { timeout: 15_000, polling: 50 }, name, state)
    .catch(async () => { throw new Error(`${name} is not ${state}: ${await tab.text()}`); });
  const open = (name) => tab.page.$$eval('.sources summary', (all, wanted) => all.find((each) => each.innerText.includes(wanted)).click(), name);
  await shows('toy', 'connected');
  await shows('toy', '1 tool');
  await shows('off', 'disabled');
  // Why, and what to do, without opening the row.
  await shows('broken', 'Next:');
  await shows('broken', '/nowhere/at/all');
  await axe(tab, 'servers');
  await open('toy');
  await tab.click('Show its error output');
  await tab.has('toy <b>begins</b>');
  await axe(tab, 'a server');
  await shot(tab, 'server');
  // Each of what a person can do, as it is done.
  await tab.click('Disable');
  await tab.click('Yes');
  await shows('toy', 'disabled');
  await tab.click('Enable');
  await shows('toy', 'connected');
  const process_ = async () => (await daemon.get('/v1/sources/toy')).pid;
  const before = await process_();
  await tab.click('Reconnect');
  await until(process_, (now) => now && now !== before, 'another process');
  await shows('toy', 'connected');
  // Its tool, by a form.
  await tab.view('/ui/servers/toy__greet');
  await tab.page.waitForSelector('#argument-name');
  await tab.page.type('#argument-name', '<i>Ann</i>');
  await tab.click('Call');
  await tab.click('Yes');
  await tab.has('hello, <i>Ann</i>');
  assert.deepEqual(tab.problems, []);
});

for (const [agents, width, dark] of [0, 5, 500].flatMap((count) => [[count, 360, false], [count, 1280, false], [count, 1280, true], [count, 2560, true]])) {
  test(`${agents} agents at ${width} px, ${dark ? 'dark' : 'light'}: all are here, and nothing is beside the window`, async (daemon) => {
    for (let from = 0; from < agents; from += 25) {
      await Promise.all(Array.from({ length: Math.min(25, agents - from) }, (_, n) => daemon.peer(`agent-${String(from + n).padStart(3, '0')}`, { backend: ['claude-code', 'codex', 'gemini'][n % 3] })));
    }
    const tab = await Tab.signedIn(daemon, { width, height: width < 500 ? 780 : 1000, dark });
    for (const view of ['now', 'agents', 'messages']) {
      await tab.view(at(view));
      if (view === 'now' && agents) await tab.has(`agent-${String(agents - 1).padStart(3, '0')}`);
      if (view !== 'messages' && agents > 5) {
        // There is nothing to search before the agents are there.
        await tab.page.waitForSelector('[data-search]', { timeout: 60_000 });
        await tab.page.keyboard.press('/');
        await tab.page.keyboard.type('agent-321');
        await tab.page.waitForFunction(() => document.querySelectorAll('.team tbody tr, .threads li').length === 1, { timeout: 60_000, polling: 50 });
        await tab.has('agent-321');
      }
      const [inner, scroll] = await tab.page.evaluate(() => [innerWidth, document.scrollingElement.scrollWidth]);
      assert.ok(scroll <= inner, `${view}: ${scroll} px in a window of ${inner}`);
      await shot(tab, `${view}-${agents}-agents-${width}${dark ? '-dark' : ''}`);
    }
    assert.deepEqual(tab.problems, []);
  });
}

test('texts of agents are text', async (daemon) => {
  const evil = '<img src=x onerror="globalThis.owned=1"><script>globalThis.owned=1</script>';
  const bidi = 'safe\u202Egnp.exe\u202C \u2066x\u2069 z\u200Bw\uFEFF \u001b]0;title\u0007 \u001b[2J\u0001\u009b';
  const ann = await daemon.peer(`ann ${evil}`);
  await daemon.post(`/v1/peers/${ann.peer_id}/messages`, { text: `${evil} ${bidi} see https://example.com/${'a'.repeat(80)}?q=1. javascript:alert(1)` });
  await daemon.tool('start_session', { session_id: 's-evil', cwd: '/tmp' });
  await daemon.tool('start_ghap', { session_id: 's-evil', domain: 'debugging', strategy: 'read-the-error', goal: `${evil} goal`, hypothesis: evil, action: evil, prediction: evil });
  const lines = [`${evil} \u001b[1;31mred\u001b[0m \u001b[38;5;46mgreen\u001b[0m`, bidi, 'x'.repeat(900_000)];
  const task = await daemon.post('/v1/tasks', { title: evil, prompt: bidi });
  for (const line of lines) await daemon.print(task.task_id, [line]);
  const tab = await Tab.signedIn(daemon);
  for (const place of ['/', '/ui/messages', '/ui/tasks', `/ui/tasks/${task.task_id}`, '/ui/log', '/ui/journal', '/ui/health']) {
    await tab.view(place);
    if (place !== '/ui/health') await tab.has('<img src=x');
    const found = await tab.page.evaluate(() => ({ owned: globalThis.owned ?? null, images: document.images.length, scripts: document.querySelectorAll('main script').length, raw: /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/.test(document.body.textContent) }));
    assert.deepEqual(found, { owned: null, images: 0, scripts: 0, raw: false }, place);
  }
  // Joiners that join are text, and others are symbols.
  const joined = '👩\u200d💻 می\u200cخواهم';
  await daemon.post(`/v1/peers/${ann.peer_id}/messages`, { text: `${joined} a\u200db` });
  await tab.view('/ui/messages');
  await tab.has(joined);
  await tab.has('a⟨U+200D⟩b');
  await tab.has('U+202E');
  const links = await tab.page.$$eval('main .text a', (all) => all.map((link) => [link.href, link.innerText, link.rel, link.target]));
  assert.equal(links.length, 1, JSON.stringify(links));
  const [href, text, rel, target] = links[0];
  assert.ok(href === text && rel.includes('noopener') && target === '_blank', JSON.stringify(links));
  await tab.view(`/ui/tasks/${task.task_id}`);
  await tab.has('red');
  await tab.page.waitForSelector('.output .c1', { timeout: 60_000 });
  const red = await tab.page.$eval('.output .c1', (span) => [span.innerText, getComputedStyle(span).fontWeight, getComputedStyle(span).color !== getComputedStyle(document.body).color]);
  assert.deepEqual(red, ['red', '700', true]);
  await tab.has('900,000 characters');
  assert.deepEqual(tab.problems, []);
});

test('another origin changes nothing with the cookie', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  const other = http.createServer((_, reply) => {
    reply.setHeader('Content-Type', 'text/html');
    reply.end('<form id=f method=post></form>');
  });
  await new Promise((done) => other.listen(0, '127.0.0.1', done));
  const { hostname } = new URL(daemon.page);
  const origin = `http://${hostname}:${other.address().port}`;
  // The same site, which is what a cookie goes by; another origin, which is what we go by.
  await tab.page.goto(origin);
  const outcomes = await tab.page.evaluate(async (url) => {
    const body = JSON.stringify({ title: 'forged' });
    const attempts = [
      { method: 'POST', mode: 'no-cors', credentials: 'include', body },
      { method: 'POST', credentials: 'include', headers: { 'Content-Type': 'application/json', 'Svc-Page': '1' }, body },
      { method: 'POST', credentials: 'include', headers: { 'Content-Type': 'text/plain' }, body },
      { credentials: 'include', headers: { 'Svc-Page': '1' } },
    ];
    return Promise.all(attempts.map((attempt) => fetch(`${url}/v1/tasks`, attempt).then((reply) => `${reply.type} ${reply.status}`, () => 'refused')));
  }, daemon.page);
  for (const outcome of outcomes) assert.ok(/^(opaque 0|refused)$/.test(outcome), outcomes.join());
  await tab.page.evaluate((url) => {
    const form = document.getElementById('f');
    form.action = `${url}/v1/tasks`;
    form.enctype = 'text/plain';
    form.submit();
  }, daemon.page);
  await tab.page.waitForFunction((url) => location.origin === url, {}, daemon.page);
  assert.equal((await daemon.get('/v1/tasks')).count, 0);
  // Nobody frames it.
  await tab.page.goto(origin);
  const isFramed = await tab.page.evaluate(async (url) => {
    const frame = document.createElement('iframe');
    frame.src = url;
    const loaded = new Promise((done) => { frame.onload = done; });
    document.body.append(frame);
    await loaded;
    try { return frame.contentDocument !== null; } catch { return false; }
  }, daemon.page);
  assert.equal(isFramed, false);
  other.close();
});

test('a server on another port gets no cookie', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  const cookies = [];
  const other = http.createServer((request, reply) => {
    cookies.push(request.headers.cookie ?? '');
    reply.end('hello');
  });
  await new Promise((done) => other.listen(0, '127.0.0.1', done));
  for (const host of ['127.0.0.1', 'localhost', 'other.localhost']) await tab.page.goto(`http://${host}:${other.address().port}/`);
  assert.ok(cookies.length >= 3 && cookies.every((cookie) => cookie === ''), JSON.stringify(cookies));
  other.close();
});

test('a ticket signs in once and leaves the address', async (daemon) => {
  const { ticket } = await daemon.post('/v1/login_tickets');
  const link = `${daemon.page}/login?ticket=${ticket}`;
  const tab = await Tab.open();
  await tab.page.goto(link);
  await tab.live();
  const seen = await tab.page.evaluate(() => JSON.stringify([location.href, document.referrer, document.documentElement.outerHTML]));
  assert.ok(!seen.includes(ticket), 'the ticket is where scripts read');
  const again = await Tab.open();
  await again.page.goto(link);
  await again.page.waitForFunction(() => document.body.innerText.includes('used already'));
  assert.ok(!again.page.url().includes(ticket));
  assert.deepEqual(await again.context.cookies(), []);
});

test('a browser that is signed out knows it at once', async (daemon) => {
  const tab = await Tab.signedIn(daemon);
  const { tokens } = JSON.parse(daemon.svc('token', 'list', '--json'));
  daemon.svc('token', 'revoke', tokens.find((token) => token.kind === 'browser').token_id);
  await daemon.task('an event', []);
  await tab.page.waitForFunction(() => document.body.innerText.includes('Signed out'), { timeout: 20_000 });
  const again = await Tab.signedIn(daemon);
  await again.click('Sign out');
  await again.page.waitForFunction(() => document.body.innerText.includes('svc open'));
  assert.deepEqual(await again.context.cookies(), []);
});

test('10,000 lines: a screenful is in the document, the end follows until the person scrolls', async (daemon) => {
  const task = await daemon.task('long', Array.from({ length: 10_000 }, (_, n) => `line ${n}`));
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/tasks/${task}`);
  await tab.has('line 9999');
  assert.ok(await tab.page.$$eval('.output .row', (rows) => rows.length) < 120);
  await daemon.print(task, ['one more']);
  await tab.has('one more');
  // A person scrolls on: what is drawn in the moment of the first step takes the list to its end once more.
  await tab.page.waitForFunction(() => {
    document.querySelector('.output').scrollTop = 1000;
    return document.querySelector('main').innerText.includes('Follow the end');
  });
  const before = await tab.page.$eval('.output', (list) => list.scrollTop);
  await daemon.print(task, ['and another']);
  await new Promise((done) => setTimeout(done, 600));
  assert.equal(await tab.page.$eval('.output', (list) => list.scrollTop), before, 'it stays where the person is');
  await tab.click('Follow the end');
  await tab.has('and another');
  await tab.page.type('[data-search][aria-label="Search the output"]', 'line 4321');
  await tab.has('1 of 10,002 lines');
});

test('the keyboard reaches everything', async (daemon) => {
  await fill(daemon);
  const tab = await Tab.signedIn(daemon);
  const press = async (...keys) => { for (const key of keys) await tab.page.keyboard.press(key); };
  const letters = { a: 'agents', m: 'messages', t: 'tasks', l: 'log', j: 'journal', s: 'servers', h: 'health', n: 'now' };
  for (const [letter, view] of Object.entries(letters)) {
    await press('g', letter);
    await tab.page.waitForFunction((wanted) => location.pathname === wanted, {}, at(view));
  }
  await press('g', 't');
  await tab.has('npm run build');
  await press('/');
  assert.equal(await tab.page.evaluate(() => document.activeElement.getAttribute('aria-label')), 'Search tasks');
  await tab.page.keyboard.type('cargo');
  await tab.page.waitForFunction(() => document.querySelector('main')?.innerText.includes('npm run build') === false);
  await press('Escape', 'j', 'Enter');
  await tab.has('tests failed');
  await press('?');
  await tab.page.waitForSelector('dialog[open]');
  await axe(tab, 'keys');
  await press('Escape');
  await tab.page.waitForSelector('dialog[open]', { hidden: true });
  // Each thing that Tab reaches can be seen to have the focus.
  for (let n = 0; n < 40; n += 1) {
    await press('Tab');
    const focus = await tab.page.evaluate(() => ({ is: document.activeElement.outerHTML.slice(0, 120), outline: getComputedStyle(document.activeElement).outlineStyle, isBody: document.activeElement === document.body }));
    assert.ok(focus.isBody || focus.outline !== 'none', focus.is);
  }
  assert.deepEqual(tab.problems, []);
});

test('a position of the log is a link', async (daemon) => {
  const task = await daemon.task('first', Array.from({ length: 900 }, (_, n) => `line ${n}`));
  const page = await daemon.get(`/v1/events?stream=task/${task}&limit=1&after=100`);
  const { position } = page.events[0];
  const tab = await Tab.signedIn(daemon);
  await tab.view(`/ui/log/${position}`);
  await tab.has('line 99');
  assert.equal(await tab.page.$eval('.events .row.chosen .position', (link) => link.innerText), String(position));
  await tab.view('/ui/log/999999');
  await tab.has('There is no such event.');
});

test('it is ready within a second, and small', async (daemon) => {
  await fill(daemon);
  const tab = await Tab.signedIn(daemon);
  const client = await tab.page.createCDPSession();
  await client.send('Network.enable');
  let bytes = 0;
  client.on('Network.loadingFinished', (event) => { bytes += event.encodedDataLength; });
  await client.send('Network.setCacheDisabled', { cacheDisabled: true });
  const started = Date.now();
  await tab.page.goto(`${daemon.page}/`, { waitUntil: 'domcontentloaded' });
  await tab.has('Find the flaky test');
  const took = Date.now() - started;
  assert.ok(bytes < 250_000, `${bytes} bytes`);
  assert.ok(took < (process.env.SVC_STRICT ? 1000 : 4000), `${took} ms`);
  console.log(`     ready after ${took} ms, ${bytes} bytes with the data`);
});

test('it is ready within a second with much in the database', async (daemon) => {
  const isLarge = Boolean(process.env.SVC_STRICT);
  const [tasks, thousands] = isLarge ? [10_000, 1000] : [1000, 20];
  for (let from = 0; from < tasks; from += 50) {
    await Promise.all(Array.from({ length: 50 }, (_, n) => daemon.post('/v1/tasks', { title: `task ${from + n}` })));
  }
  const long = await daemon.task('a long one', []);
  const lines = Array.from({ length: 1000 }, (_, n) => `line ${n}`);
  for (let n = 0; n < thousands; n += 1) await daemon.print(long, lines);
  await fill(daemon);
  // The first window signs in; what is measured is a window of later, with nothing in its cache.
  const tab = await Tab.signedIn(daemon);
  const took = [];
  for (const [place, word] of [['/', 'Find the flaky test'], ['/ui/tasks', 'npm run build'], ['/ui/log', 'built'], ['/ui/messages', 'It does since yesterday.'], ['/ui/journal', 'The cache loses tenant']]) {
    const started = Date.now();
    await tab.page.goto(`${daemon.page}${place}`, { waitUntil: 'domcontentloaded' });
    await tab.has(word, 20_000);
    took.push([place, Date.now() - started]);
  }
  console.log(`     ${tasks} tasks, ${thousands},000 events: ${took.map(([place, ms]) => `${place} ${ms} ms`).join(', ')}`);
  for (const [place, ms] of took) assert.ok(ms < (isLarge ? 1000 : 4000), `${place}: ${ms} ms`);
  assert.deepEqual(tab.problems, []);
});

test('ten open pages share one stream, and go on when the one that reads it is closed', async (daemon) => {
  const first = await Tab.signedIn(daemon);
  const pages = [first.page];
  for (let n = 1; n < 10; n += 1) {
    pages.push(await first.another('/ui/tasks'));
  }
  const shows = (page, text) => page.waitForFunction((wanted) => document.querySelector('main')?.innerText.includes(wanted), { timeout: 15_000, polling: 100 }, text)
    .catch(async () => { throw new Error(`page ${pages.indexOf(page)}: no "${text}" in ${await page.evaluate(() => document.body.innerText)}`); });
  await first.view('/ui/tasks');
  await daemon.task('for all of them', []);
  await Promise.all(pages.map((page) => shows(page, 'for all of them')));
  const read = async () => (await fetch(`${daemon.url}/metrics`, { headers: { Authorization: `Bearer ${daemon.token}` } })).text();
  const metrics = await read();
  assert.match(metrics, /^svc_subscribers 1$/m);
  // Nobody asks for anything while nothing happens: all that is counted meanwhile is this reading itself.
  const counts = (text) => text.split('\n').filter((line) => /^svc_(http_requests_total|store_commits_total|store_jobs_total|subscribers|budget_used)/.test(line) && !line.includes('route="/metrics"'));
  // What followed from the task may go on for some seconds: the daemon's lease is renewed after a write.
  let [before, after] = [[], counts(await read())];
  for (let tries = 0; tries < 5 && String(before) !== String(after); tries += 1) {
    await new Promise((done) => setTimeout(done, 4000));
    [before, after] = [after, counts(await read())];
  }
  assert.deepEqual(after, before, 'ten pages cost something');
  // Whichever reads it: all but two are closed, one after the other, while events come.
  for (let n = 0; pages.length > 2; n += 1) {
    const gone = pages.pop();
    const made = daemon.task(`task ${n}`, []);
    await gone.close();
    await made;
  }
  await daemon.kill();
  await daemon.run();
  await daemon.task('the last one', []);
  for (const page of pages) {
    for (const title of ['the last one', 'task 0', 'task 7']) await shows(page, title);
  }
  // What a browser calls a request whose daemon was killed depends on how far the request had come. One that starts answers 503.
  const isOfKill = (problem) => /^Failed to load resource: (net::ERR_|the server responded with a status of 503 )/.test(problem);
  assert.deepEqual(first.problems.filter((problem) => !isOfKill(problem)), []);
});

test('a thousand events a second leave no long task', async (daemon) => {
  const task = await daemon.task('flood', []);
  const tab = await Tab.signedIn(daemon);
  await tab.view('/ui/log');
  await tab.page.evaluate(() => {
    globalThis.longest = 0;
    globalThis.shifted = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => { globalThis.longest = Math.max(globalThis.longest, entry.duration); })).observe({ type: 'longtask', buffered: false });
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => { globalThis.shifted += entry.value; })).observe({ type: 'layout-shift', buffered: false });
  });
  const seconds = Number(process.env.SVC_FLOOD_SECONDS ?? 10);
  for (let n = 0; n < seconds * 10; n += 1) {
    const due = Date.now() + 100;
    await daemon.print(task, Array.from({ length: 100 }, (_, k) => `line ${n * 100 + k} of the flood`));
    await new Promise((done) => setTimeout(done, Math.max(0, due - Date.now())));
  }
  await tab.has(`line ${seconds * 1000 - 1} of the flood`);
  const [longest, shifted] = await tab.page.evaluate(() => [globalThis.longest, globalThis.shifted]);
  // Rows that move up as others come after them are what a log is; nothing else moves.
  assert.ok(shifted < 0.1, `the layout shifted by ${shifted}`);
  const { JSHeapUsedSize } = await tab.page.metrics();
  console.log(`     longest task ${Math.round(longest)} ms, layout shift ${shifted.toFixed(3)}, heap ${Math.round(JSHeapUsedSize / 1e6)} MB`);
  assert.ok(longest <= (process.env.SVC_STRICT ? 100 : 500), `${longest} ms`);
  assert.ok(JSHeapUsedSize < 150e6, `${JSHeapUsedSize} bytes`);
  assert.deepEqual(tab.problems, []);
});

const words = process.argv.slice(2);
const chosen = tests.filter(({ name }) => !words.length || words.some((word) => name.includes(word)));
let failed = 0;
for (const { name, run } of chosen) {
  const daemon = await Daemon.start();
  const started = Date.now();
  try {
    await run(daemon);
    console.log(`ok   ${name} (${Date.now() - started} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${String(error.stack ?? error).replace(/^/gm, '     ')}`);
  } finally {
    await daemon.remove();
    await closeBrowser();
  }
}
console.log(`${chosen.length - failed} of ${chosen.length} tests of the page passed`);
process.exit(failed || !chosen.length ? 1 : 0);
