// The TypeScript SDK 2.x, which speaks both eras.
import { Client, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { BIN, Daemon, check, done, eq, ok, sleep, structured, until } from './daemon.mjs';

const say = (name) => `ts v2: ${name}`;
const MODES = { legacy: 'legacy', auto: 'auto', 'pinned 2026-07-28': { pin: '2026-07-28' } };

function client(mode) {
  return new Client({ name: 'ts-v2', version: '1' }, { capabilities: {}, versionNegotiation: { mode } });
}

async function connect(daemon, mode) {
  const it = client(mode);
  await it.connect(new StreamableHTTPClientTransport(new URL(`${daemon.url}/mcp`), { requestInit: { headers: daemon.headers } }));
  return it;
}

const wait = (it, task, options) => it.callTool({ name: 'TaskWait', arguments: { task_id: task, timeout_s: 60 } }, options);

async function http(name, mode) {
  const daemon = await Daemon.start();
  const era = mode === 'legacy' ? 'legacy' : 'modern';
  await check(say(`${name}: list, call, read, prompts`), async () => {
    const it = await connect(daemon, mode);
    eq(it.getProtocolEra?.() ?? era, era, 'era');
    const { tools } = await it.listTools();
    ok(tools.some((tool) => tool.name === 'peer_list'), 'peer_list');
    const peer = { display_name: 'ada', backend: 'codex', path: '/repo' };
    const { peer_id } = structured(await it.callTool({ name: 'peer_register', arguments: peer }));
    const { peers } = structured(await it.callTool({ name: 'peer_list', arguments: {} }));
    eq(peers.map((peer) => peer.peer_id), [peer_id], 'peers');
    const { resources } = await it.listResources();
    for (const { uri } of resources) eq((await it.readResource({ uri })).contents[0].uri, uri, 'uri');
    ok((await it.listPrompts()).prompts.length > 0, 'prompts');
    const failed = await it.callTool({ name: 'TaskGet', arguments: { task_id: 'nope' } });
    eq([failed.isError, failed.structuredContent.error.type], [true, 'not_found'], 'error');
    const unknown = await it.callTool({ name: 'nope', arguments: {} }).catch((error) => error);
    eq(unknown.code, -32602, 'code');
    await it.close();
  });
  await check(say(`${name}: a slow call, and progress`), async () => {
    const it = await connect(daemon, mode);
    const tasks = [await daemon.task(), await daemon.task()];
    const heard = [];
    const call = it.callTool(
      { name: 'TaskNotify', arguments: { task_ids: tasks, timeout_s: 60, mode: 'all' } },
      { onprogress: (progress) => heard.push(progress) },
    );
    for (const task of tasks) {
      await sleep(700);
      await daemon.finish(task);
    }
    eq(structured(await call).finished.map((task) => task.task_id), tasks, 'finished');
    ok(heard.length > 0, 'progress');
    await it.close();
  });
  await check(say(`${name}: kill -9 between calls`), async () => {
    const it = await connect(daemon, mode);
    structured(await it.callTool({ name: 'peer_list', arguments: {} }));
    await daemon.crash();
    structured(await it.callTool({ name: 'peer_list', arguments: {} }));
    ok((await it.listTools()).tools.length > 5, 'tools');
    await it.close();
  });
  await check(say(`${name}: kill -9 in the middle of a call`), async () => {
    const it = await connect(daemon, mode);
    const task = await daemon.task();
    // Without sessions nothing resumes. This client does not see that the stream broke: its own time limit ends the call,
    // and repeating it is right.
    const call = wait(it, task, { timeout: era === 'modern' ? 5000 : 30000 }).catch((error) => error);
    await sleep(1500);
    await daemon.crash();
    setTimeout(() => daemon.finish(task), 1500);
    const answer = await call;
    if (era === 'modern') ok(answer instanceof Error, `an error, not ${JSON.stringify(answer)}`);
    eq(structured(era === 'modern' ? await wait(it, task) : answer).task.status, 'done', 'status');
    await it.close();
  });
  if (era === 'modern') {
    await check(say(`${name}: subscriptions/listen`), async () => {
      const it = await connect(daemon, mode);
      const [updated, listed] = [[], []];
      it.setNotificationHandler('notifications/resources/updated', (note) => void updated.push(note.params.uri));
      it.setNotificationHandler('notifications/resources/list_changed', () => void listed.push(1));
      const task = await daemon.task();
      const uri = `svc://stream/task/${task}`;
      await sleep(100);
      const filter = { toolsListChanged: true, resourcesListChanged: true, resourceSubscriptions: [uri] };
      const subscription = await it.listen(filter);
      eq(subscription.honoredFilter, filter, 'honoured');
      await daemon.finish(task);
      await until(() => updated.includes(uri), 'updated');
      await daemon.task();
      await until(() => listed.length > 0, 'list_changed');
      await daemon.kill9();
      eq(await subscription.closed, 'remote', 'closed');
      await daemon.start();
      const again = await it.listen(filter);
      await again.close();
      eq(await again.closed, 'local', 'closed');
      const last = await it.listen(filter);
      daemon.child.kill('SIGTERM');
      // It is not over, but cut: who listens is to come back after a restart.
      eq(await last.closed, 'remote', 'closed');
      await daemon.gone;
      await daemon.start();
      await it.close();
    });
  }
}

async function others() {
  const daemon = await Daemon.start();
  await check(say('sse: list, call, slow call'), async () => {
    const it = client('legacy');
    await it.connect(new SSEClientTransport(new URL(`${daemon.url}/sse`), { requestInit: { headers: daemon.headers } }));
    ok((await it.listTools()).tools.length > 5, 'tools');
    const task = await daemon.task();
    const call = wait(it, task);
    setTimeout(() => daemon.finish(task), 1500);
    eq(structured(await call).task.status, 'done', 'status');
    await it.close();
  });
  for (const [name, mode] of Object.entries(MODES)) {
    await check(say(`stdio, ${name}: list, call, slow call over kill -9`), async () => {
      const it = client(mode);
      await it.connect(new StdioClientTransport({ command: BIN, args: ['stdio'], env: daemon.env, stderr: 'pipe' }));
      ok((await it.listTools()).tools.length > 5, 'tools');
      const { peer_id } = structured(await it.callTool({
        name: 'peer_register', arguments: { display_name: 'waits', backend: 'codex', path: '/waits' },
      }));
      const task = await daemon.task(peer_id);
      const call = wait(it, task);
      await sleep(1500);
      await daemon.crash();
      setTimeout(() => daemon.finish(task), 1000);
      eq(structured(await call).task.status, 'done', 'status');
      await it.close();
    });
  }
}

await Promise.all([...Object.entries(MODES).map(([name, mode]) => http(name, mode)), others()]);
await done();
