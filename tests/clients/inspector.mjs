// The MCP Inspector's command line, in all its modes.
import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { BIN, Daemon, check, done, eq, ok, structured } from './daemon.mjs';

const INSPECTOR = join(dirname(fileURLToPath(import.meta.url)), 'node_modules/.bin/mcp-inspector');
const say = (name) => `inspector: ${name}`;

/** Runs it: exit code, standard output as JSON if it is, standard error. */
function run(env, args) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [INSPECTOR, '--cli', ...args, '--format', 'json'], { env });
    let [out, err] = ['', ''];
    child.stdout.on('data', (data) => (out += data));
    child.stderr.on('data', (data) => (err += data));
    child.on('close', (code) => {
      let json;
      try {
        json = JSON.parse(out);
      } catch {
        json = undefined;
      }
      resolve({ code, json, out, err });
    });
  });
}

async function good(env, args) {
  const ran = await run(env, args);
  ok(ran.code === 0 && ran.json, `${args.join(' ')}: exit ${ran.code}\n${ran.out}\n${ran.err}`);
  return ran.json.result ?? ran.json;
}

/** Every method, by one way in. */
async function tour(name, env, way) {
  await check(say(`${name}: initialize`), async () => {
    const it = await good(env, [...way, '--method', 'initialize']);
    eq((it.serverInfo ?? it.server)?.name, 'svc', `server in ${JSON.stringify(it).slice(0, 200)}`);
  });
  await check(say(`${name}: tools/list, strictly`), async () => {
    const { tools } = await good(env, [...way, '--method', 'tools/list', '--strict']);
    ok(tools.some((tool) => tool.name === 'peer_list'), 'peer_list');
  });
  await check(say(`${name}: tools/call`), async () => {
    const peer = ['--tool-arg', 'display_name=ada', '--tool-arg', 'backend=codex', '--tool-arg', 'path=/repo'];
    const made = structured(await good(env, [...way, '--method', 'tools/call', '--tool-name', 'peer_register', ...peer]));
    // Over stdio the process that it was made by has ended, and with it its peer may be offline.
    const { peers } = structured(await good(env, [...way, '--method', 'tools/call', '--tool-name', 'peer_list', '--tool-arg', 'all=true']));
    ok(peers.some((it) => it.peer_id === made.peer_id), 'the peer');
  });
  await check(say(`${name}: resources and prompts`), async () => {
    const { resources } = await good(env, [...way, '--method', 'resources/list']);
    const uri = resources[0].uri;
    const { contents } = await good(env, [...way, '--method', 'resources/read', '--uri', uri]);
    eq(contents[0].uri, uri, 'uri');
    ok((await good(env, [...way, '--method', 'resources/templates/list'])).resourceTemplates.length > 0, 'templates');
    ok((await good(env, [...way, '--method', 'prompts/list'])).prompts.length > 0, 'prompts');
  });
}

const daemon = await Daemon.start();
const env = daemon.env;
const header = ['--header', `Authorization: Bearer ${daemon.token}`];
const http = [`${daemon.url}/mcp`, '--transport', 'http', ...header];
const call = ['--method', 'tools/call', '--tool-name'];

const ways = [
  ...['legacy', 'modern', 'auto'].map((era) => [`http ${era}`, [...http, '--protocol-era', era]]),
  ['sse', [`${daemon.url}/sse`, '--transport', 'sse', ...header]],
  ['stdio', ['-e', `SVC_HOME=${env.SVC_HOME}`, BIN, 'stdio', '--expose', 'all']],
];
// Two at a time: each command starts a Node of its own.
const queue = ways.map(([name, way]) => () => tour(name, env, way));
queue.push(async () => {
  await check(say('exit codes'), async () => {
    const codes = {};
    const expect = async (what, args, code) => {
      const ran = await run(env, args);
      codes[what] = ran.code;
      ok(ran.code === code, `${what}: exit ${ran.code} and not ${code}\n${ran.out}\n${ran.err}`);
    };
    await expect('no token', [`${daemon.url}/mcp`, '--transport', 'http', '--method', 'tools/list'], 3);
    await expect('nobody there', ['http://127.0.0.1:9/mcp', '--transport', 'http', '--method', 'tools/list'], 4);
    await expect('a failing tool', [...http, ...call, 'TaskGet', '--tool-arg', 'task_id=nope'], 5);
    await expect('a failing tool, modern', [...http, '--protocol-era', 'modern', ...call, 'TaskGet', '--tool-arg', 'task_id=nope'], 5);
  });
  for (const era of ['legacy', 'modern']) {
    await check(say(`load for a second, ${era}`), async () => {
      const load = ['--load', '--load-concurrency', '8', '--load-duration', '1'];
      const ran = await run(env, [...http, '--protocol-era', era, ...call, 'peer_list', ...load]);
      const text = JSON.stringify(ran.json);
      ok(ran.code === 0 && ran.json, `exit ${ran.code}\n${ran.out}\n${ran.err}`);
      console.log(`      ${text.slice(0, 400)}`);
    });
  }
});
await Promise.all([0, 1].map(async () => {
  for (let next = queue.shift(); next; next = queue.shift()) await next();
}));
await done();
