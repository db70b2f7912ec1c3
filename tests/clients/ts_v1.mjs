// The TypeScript SDK 1.x.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  ResourceListChangedNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { BIN, Daemon, check, done, eq, ok, sleep, structured, until } from './daemon.mjs';

const say = (name) => `ts v1: ${name}`;

/** A client, and every request that it has made. */
async function connect(daemon, { cut } = {}) {
  const seen = [];
  const spy = async (url, init) => {
    const headers = new Headers(init?.headers);
    const body = init?.body ? JSON.parse(init.body) : undefined;
    const asked = { method: init?.method ?? 'GET', rpc: body?.method, last: headers.get('last-event-id') };
    seen.push(asked);
    const scissors = new AbortController();
    const signal = init?.signal ? AbortSignal.any([init.signal, scissors.signal]) : scissors.signal;
    const response = await fetch(url, { ...init, signal });
    asked.status = response.status;
    asked.type = response.headers.get('content-type');
    // The connection itself is cut, which the daemon sees, too.
    if (cut?.(asked)) setTimeout(() => scissors.abort(), 300);
    return response;
  };
  const transport = new StreamableHTTPClientTransport(new URL(`${daemon.url}/mcp`), {
    requestInit: { headers: daemon.headers },
    fetch: spy,
  });
  const client = new Client({ name: 'ts-v1', version: '1' }, { capabilities: {} });
  client.onerror = (error) => seen.push({ error: String(error) });
  await client.connect(transport);
  return { client, transport, seen };
}

const wait = (client, task, options) =>
  client.callTool({ name: 'TaskWait', arguments: { task_id: task, timeout_s: 60 } }, undefined, options);

async function http() {
  const daemon = await Daemon.start();
  await check(say('list, call, read, prompts'), async () => {
    const { client, transport } = await connect(daemon);
    eq(client.getServerVersion().name, 'svc', 'server');
    ok(client.getInstructions().length > 100, 'instructions');
    ok(transport.sessionId, 'session id');
    const { tools } = await client.listTools();
    for (const name of ['peer_list', 'peer_register', 'peer_send', 'TaskList', 'TaskWait', 'events_read']) {
      ok(tools.some((tool) => tool.name === name), `no tool ${name}`);
    }
    const peer = { display_name: 'ada', backend: 'codex', path: '/repo' };
    const { peer_id } = structured(await client.callTool({ name: 'peer_register', arguments: peer }));
    const { peers } = structured(await client.callTool({ name: 'peer_list', arguments: {} }));
    eq(peers.map((it) => it.peer_id), [peer_id], 'peers');
    const { resources } = await client.listResources();
    ok(resources.length > 0, 'resources');
    for (const { uri } of resources) eq((await client.readResource({ uri })).contents[0].uri, uri, 'uri');
    ok((await client.listResourceTemplates()).resourceTemplates.length > 0, 'templates');
    const { prompts } = await client.listPrompts();
    ok(prompts.length > 0, 'prompts');
    eq(await client.ping(), {}, 'ping');
    await transport.terminateSession();
    await client.close();
  });
  await check(say('a failing call, an unknown tool, wrong arguments'), async () => {
    const { client } = await connect(daemon);
    // It checks results, those of failed calls too, against the schemas that it has seen.
    await client.listTools();
    const failed = await client.callTool({ name: 'TaskGet', arguments: { task_id: 'nope' } });
    eq([failed.isError, failed.structuredContent.error.type], [true, 'not_found'], 'error');
    const wrong = await client.callTool({ name: 'TaskGet', arguments: {} });
    eq([wrong.isError, wrong.structuredContent.error.type], [true, 'validation_error'], 'error');
    const unknown = await client.callTool({ name: 'nope', arguments: {} }).catch((error) => error);
    eq(unknown.code, -32602, 'code');
    await client.close();
  });
  await check(say('a wrong token is refused'), async () => {
    const other = { url: daemon.url, headers: { Authorization: 'Bearer wrong' } };
    const error = await connect(other).catch((error) => error);
    ok(/401|Unauthorized/i.test(`${error.name} ${error.code} ${error.message}`), `${error}`);
  });
  await check(say('a slow call, with progress that keeps it alive'), async () => {
    const { client } = await connect(daemon);
    const task = await daemon.task();
    const call = wait(client, task, { onprogress: () => {} });
    setTimeout(() => daemon.finish(task), 1500);
    eq(structured(await call).task.status, 'done', 'status');
    await client.close();
  });
  await check(say('a slow call whose stream is cut resumes by itself'), async () => {
    const { client, seen } = await connect(daemon, { cut: (asked) => asked.rpc === 'tools/call' });
    const task = await daemon.task();
    const call = wait(client, task);
    setTimeout(() => daemon.finish(task), 3000);
    eq(structured(await call).task.status, 'done', 'status');
    ok(seen.some((asked) => asked.method === 'GET' && asked.last && asked.status === 200), JSON.stringify(seen));
    eq(seen.filter((asked) => asked.rpc === 'tools/call').length, 1, 'POSTs of the call');
    await client.close();
  });
  await check(say('an answer that came while nobody was connected'), async () => {
    const { client, seen } = await connect(daemon, { cut: (asked) => asked.rpc === 'tools/call' });
    const task = await daemon.task();
    const call = wait(client, task);
    await until(() => seen.find((asked) => /abort/i.test(asked.error ?? '')), 'the cut');
    await daemon.finish(task);
    eq(structured(await call).task.status, 'done', 'status');
    await client.close();
  });
  await check(say('parallel calls'), async () => {
    const { client } = await connect(daemon);
    const tasks = await Promise.all(Array.from({ length: 8 }, () => daemon.task()));
    const calls = tasks.map((task) => wait(client, task));
    const lists = Array.from({ length: 8 }, () => client.callTool({ name: 'TaskList', arguments: {} }));
    for (const list of await Promise.all(lists)) ok(structured(list).count >= 8, 'tasks');
    await Promise.all(tasks.map((task) => daemon.finish(task)));
    const ended = (await Promise.all(calls)).map((it) => structured(it).task.task_id);
    eq(ended, tasks, 'each its own');
    await client.close();
  });
  await check(say('a cancelled call ends, and the session goes on'), async () => {
    const { client } = await connect(daemon);
    const task = await daemon.task();
    const stop = new AbortController();
    const call = wait(client, task, { signal: stop.signal }).catch((error) => error);
    await sleep(300);
    stop.abort('enough');
    ok((await call) instanceof Error, 'an error');
    structured(await client.callTool({ name: 'TaskList', arguments: {} }));
    await client.close();
  });
}

async function crashes() {
  const daemon = await Daemon.start();
  await check(say('kill -9 between calls'), async () => {
    const { client, transport, seen } = await connect(daemon);
    structured(await client.callTool({ name: 'peer_list', arguments: {} }));
    const session = transport.sessionId;
    await daemon.crash();
    structured(await client.callTool({ name: 'peer_list', arguments: {} }));
    eq(transport.sessionId, session, 'session');
    eq(seen.filter((asked) => asked.rpc === 'initialize').length, 1, 'initializes');
    await client.close();
  });
  await check(say('kill -9 in the middle of a call'), async () => {
    const { client, seen } = await connect(daemon);
    const task = await daemon.task();
    const call = wait(client, task);
    await until(() => seen.find((asked) => asked.rpc === 'tools/call' && asked.status === 200), 'the stream');
    await sleep(200);
    await daemon.crash();
    setTimeout(() => daemon.finish(task), 2000);
    eq(structured(await call).task.status, 'done', 'status');
    eq(seen.filter((asked) => asked.rpc === 'tools/call').length, 1, 'POSTs of the call');
    structured(await client.callTool({ name: 'TaskList', arguments: {} }));
    await client.close();
  });
  await check(say('kill -9, and the task ends before the client is back'), async () => {
    const { client, seen } = await connect(daemon);
    const task = await daemon.task();
    const call = wait(client, task);
    await until(() => seen.find((asked) => asked.rpc === 'tools/call' && asked.status === 200), 'the stream');
    await sleep(200);
    await daemon.crash();
    await daemon.finish(task);
    eq(structured(await call).task.status, 'done', 'status');
    await client.close();
  });
  await check(say('a call while the daemon is down fails, the next one works'), async () => {
    const { client } = await connect(daemon);
    await daemon.crash(async () => {
      const error = await client.callTool({ name: 'peer_list', arguments: {} }).catch((error) => error);
      ok(error instanceof Error, 'an error');
    });
    structured(await client.callTool({ name: 'peer_list', arguments: {} }));
    await client.close();
  });
}

/** Notifications of one kind, in a list that grows. */
function gather(client, schema) {
  const got = [];
  client.setNotificationHandler(schema, (it) => void got.push(it.params));
  return got;
}

async function notices() {
  const daemon = await Daemon.start();
  await check(say('resources/updated and list_changed on the standalone stream'), async () => {
    const { client, seen } = await connect(daemon);
    const [updated, listed] = [gather(client, ResourceUpdatedNotificationSchema), gather(client, ResourceListChangedNotificationSchema)];
    await until(() => seen.find((asked) => asked.method === 'GET' && asked.status === 200), 'the standalone stream');
    const task = await daemon.task();
    await until(() => listed.length > 0, 'list_changed');
    const uri = `svc://stream/task/${task}`;
    await client.subscribeResource({ uri });
    await daemon.rest('POST', `/v1/tasks/${task}/events`, { kind: 'frame', data: { line: 'one', kind: 'stdout' } });
    await until(() => updated.some((it) => it.uri === uri), 'updated');
    const before = updated.length;
    await client.unsubscribeResource({ uri });
    await daemon.finish(task);
    await sleep(300);
    eq(updated.length, before, 'updates after unsubscribe');
    await client.close();
  });
  await check(say('subscriptions outlive kill -9, and what was missed is told'), async () => {
    const { client, seen } = await connect(daemon);
    const updated = gather(client, ResourceUpdatedNotificationSchema);
    const task = await daemon.task();
    const uri = `svc://stream/task/${task}`;
    await until(() => seen.find((asked) => asked.method === 'GET' && asked.status === 200), 'the standalone stream');
    await client.subscribeResource({ uri });
    await sleep(200);
    await daemon.crash();
    await daemon.finish(task);
    await until(() => updated.some((it) => it.uri === uri), 'updated');
    await client.close();
  });
  await check(say('a daemon that comes back with other tools says so'), async () => {
    const { client } = await connect(daemon);
    const changed = gather(client, ToolListChangedNotificationSchema);
    await client.listTools();
    await sleep(200);
    await daemon.crash((it) => it.forgetTools());
    await until(() => changed.length > 0, 'tools/list_changed');
    ok((await client.listTools()).tools.length > 5, 'tools');
    await client.close();
  });
}

async function sse() {
  const daemon = await Daemon.start();
  const open = async () => {
    const transport = new SSEClientTransport(new URL(`${daemon.url}/sse`), {
      requestInit: { headers: daemon.headers },
      eventSourceInit: { fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, ...daemon.headers } }) },
    });
    const client = new Client({ name: 'ts-v1-sse', version: '1' }, { capabilities: {} });
    await client.connect(transport);
    return client;
  };
  await check(say('sse: list, call, slow call, notifications'), async () => {
    const client = await open();
    const [updated, listed] = [gather(client, ResourceUpdatedNotificationSchema), gather(client, ResourceListChangedNotificationSchema)];
    ok((await client.listTools()).tools.length > 5, 'tools');
    const { peer_id } = structured(await client.callTool({
      name: 'peer_register', arguments: { display_name: 'waits', backend: 'codex', path: '/waits' },
    }));
    const task = await daemon.task(peer_id);
    await until(() => listed.length > 0, 'list_changed');
    const uri = `svc://stream/task/${task}`;
    await client.subscribeResource({ uri });
    const call = wait(client, task);
    setTimeout(() => daemon.finish(task), 1500);
    eq(structured(await call).task.status, 'done', 'status');
    await until(() => updated.some((it) => it.uri === uri), 'updated');
    await client.close();
  });
  // It comes back without Last-Event-ID, so what was in flight is lost to it; the next call is not.
  await check(say('sse: kill -9 between calls'), async () => {
    const client = await open();
    structured(await client.callTool({ name: 'peer_list', arguments: {} }));
    const before = daemon.sessions('sse');
    await daemon.crash();
    await until(() => daemon.sessions('sse') > before, 'a new stream');
    await sleep(100);
    structured(await client.callTool({ name: 'peer_list', arguments: {} }));
    await client.close();
  });
}

async function stdio() {
  const daemon = await Daemon.start();
  await check(say('stdio: list, call, kill -9 in the middle of a call'), async () => {
    const transport = new StdioClientTransport({ command: BIN, args: ['stdio'], env: daemon.env, stderr: 'pipe' });
    const client = new Client({ name: 'ts-v1-stdio', version: '1' }, { capabilities: {} });
    const listed = gather(client, ResourceListChangedNotificationSchema);
    await client.connect(transport);
    ok((await client.listTools()).tools.length > 5, 'tools');
    const { peer_id } = structured(await client.callTool({
      name: 'peer_register', arguments: { display_name: 'waits', backend: 'codex', path: '/waits' },
    }));
    const task = await daemon.task(peer_id);
    await until(() => listed.length > 0, 'list_changed');
    const call = wait(client, task);
    await sleep(500);
    await daemon.crash();
    setTimeout(() => daemon.finish(task), 1000);
    eq(structured(await call).task.status, 'done', 'status');
    structured(await client.callTool({ name: 'TaskList', arguments: {} }));
    await client.close();
  });
}

await Promise.all([http(), crashes(), notices(), sse(), stdio()]);
await done();
