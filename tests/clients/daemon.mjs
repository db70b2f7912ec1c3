// A daemon of its own for each script, and checks that say one line each. SVC_BIN is the binary under test.
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { DatabaseSync } from 'node:sqlite';

export const BIN = process.env.SVC_BIN;

export class Daemon {
  static #all = new Set();

  static async start() {
    const daemon = new Daemon();
    Daemon.#all.add(daemon);
    daemon.home = mkdtempSync(join(tmpdir(), 'svc-clients-'));
    daemon.port = await freePort();
    await daemon.start();
    return daemon;
  }

  /** The environment of a process that is to find this daemon. */
  get env() {
    const home = { PATH: process.env.PATH, HOME: this.home, SVC_HOME: join(this.home, 'svc') };
    return { ...home, SVC_LIST_CHANGED_MS: '100' };
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  get token() {
    return readFileSync(join(this.home, 'svc/token'), 'utf8').trim();
  }

  get headers() {
    return { Authorization: `Bearer ${this.token}` };
  }

  async start() {
    const child = spawn(BIN, ['serve', '--listen', `127.0.0.1:${this.port}`], { env: this.env });
    this.child = child;
    this.gone = new Promise((resolve) => child.on('exit', resolve));
    this.log = '';
    child.stderr.on('data', (data) => (this.log += data));
    await new Promise((resolve, reject) => {
      createInterface({ input: child.stdout }).on('line', (line) => line.includes(' ready at ') && resolve());
      child.on('exit', () => reject(new Error(`the daemon did not start: ${this.log}`)));
    });
  }

  /** Ends it as a power cut would. */
  async kill9() {
    this.child.kill('SIGKILL');
    await this.gone;
  }

  /** Killed and started again, on the same port and database. `meanwhile` runs while it is down. */
  async crash(meanwhile = () => {}) {
    await this.kill9();
    await meanwhile(this);
    await this.start();
  }

  async end() {
    this.child.kill('SIGKILL');
    await this.gone;
    rmSync(this.home, { recursive: true, force: true });
  }

  static async endAll() {
    await Promise.all([...Daemon.#all].map((daemon) => daemon.end()));
  }

  async rest(method, path, body) {
    const headers = { ...this.headers, 'Content-Type': 'application/json' };
    const response = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response.json();
  }

  /** A task that `agent` is at work on: a session may read what is given to its peer. */
  async task(agent = 'tester') {
    const { task_id } = await this.rest('POST', '/v1/tasks', { title: 'slow work', agent });
    await this.rest('POST', `/v1/tasks/${task_id}/events`, { kind: 'task', data: { status: 'active' } });
    return task_id;
  }

  async finish(task) {
    await this.rest('POST', `/v1/tasks/${task}/events`, { kind: 'terminal', data: { status: 'done', exit_code: 0 } });
  }

  /** How many sessions of a transport there are. */
  sessions(transport) {
    const db = new DatabaseSync(join(this.home, 'svc/svc.db'), { readOnly: true });
    const { n } = db.prepare('select count(*) as n from mcp_session where transport = ?').get(transport);
    db.close();
    return n;
  }

  /** While it is down: what a newer version with other tools would find of its clients. */
  forgetTools() {
    const db = new DatabaseSync(join(this.home, 'svc/svc.db'));
    db.exec('update mcp_session set tools = 1 where tools is not null');
    db.close();
  }
}

/** Below the range that the kernel hands to clients: nobody's outgoing connection sits on it during a restart. */
async function freePort() {
  for (let i = 0; i < 1000; i++) {
    const port = 10000 + Math.floor(Math.random() * 20000);
    const free = await new Promise((resolve) => {
      const server = createServer().on('error', () => resolve(false));
      server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
    });
    if (free) return port;
  }
  throw new Error('no free port');
}

let failed = 0;

/** Runs one check and says how it went. */
export async function check(name, run, within = 40_000) {
  const started = Date.now();
  let timer;
  try {
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`not done after ${within} ms`)), within);
    });
    await Promise.race([run(), late]);
    console.log(`ok    ${name} (${Date.now() - started} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error?.stack ?? error}`);
  } finally {
    clearTimeout(timer);
  }
}

export async function done() {
  await Daemon.endAll();
  process.exit(failed ? 1 : 0);
}

export function eq(found, expected, what = 'value') {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${what}: ${a} is not ${b}`);
}

export function ok(condition, what) {
  if (!condition) throw new Error(what);
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until `test` gives something. */
export async function until(test, what, within = 15_000) {
  const end = Date.now() + within;
  while (Date.now() < end) {
    const found = await test();
    if (found) return found;
    await sleep(10);
  }
  throw new Error(`${what}: not within ${within} ms`);
}

/** What every tool's result has to be: one text that is the JSON object of the structured content. */
export function structured(result) {
  eq(result.isError ?? false, false, `isError of ${JSON.stringify(result).slice(0, 300)}`);
  eq(result.content.length, 1, 'pieces of content');
  const text = JSON.parse(result.content[0].text);
  ok(text && typeof text === 'object' && !Array.isArray(text), 'content[0].text is no object');
  eq(text, result.structuredContent, 'content[0].text');
  return result.structuredContent;
}
