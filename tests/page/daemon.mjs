// A daemon of its own for each test, and a browser for all of them.
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import puppeteer from 'puppeteer-core';

const SVC = process.env.SVC_BIN;

function freePort() {
  return new Promise((done, fail) => {
    const server = net.createServer();
    server.on('error', fail);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });
}

export class Daemon {
  static async start() {
    const daemon = new Daemon();
    daemon.home = fs.mkdtempSync(path.join(os.tmpdir(), 'svc-page-'));
    daemon.port = await freePort();
    daemon.url = `http://127.0.0.1:${daemon.port}`;
    await daemon.run();
    // Where a browser has the page: a name of its own, which Chromium finds by itself.
    daemon.page = new URL(daemon.link()).origin;
    daemon.token = fs.readFileSync(path.join(daemon.home, 'token'), 'utf8').trim();
    return daemon;
  }

  async run() {
    this.child = spawn(SVC, ['serve', '--listen', `127.0.0.1:${this.port}`], { env: this.env(), stdio: ['ignore', 'pipe', 'ignore'] });
    await new Promise((done, fail) => {
      this.child.stdout.once('data', done);
      this.child.once('exit', () => fail(new Error('the daemon did not start')));
    });
  }

  env() {
    return { ...process.env, SVC_HOME: this.home };
  }

  async kill() {
    const gone = new Promise((done) => this.child.once('exit', done));
    this.child.kill('SIGKILL');
    await gone;
  }

  /** Runs it anew with this configuration. */
  async configure(...lines) {
    fs.writeFileSync(path.join(this.home, 'config.toml'), `${lines.join('\n')}\n`, { mode: 0o600 });
    await this.kill();
    await this.run();
  }

  async remove() {
    if (this.child.exitCode === null && this.child.signalCode === null) await this.kill();
    this.endHosts();
    fs.rmSync(this.home, { recursive: true, force: true });
  }

  /** Hosts outlive their daemon; a test that failed has not stopped its agents. */
  endHosts() {
    for (const pid of fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
      try {
        if (fs.readFileSync(`/proc/${pid}/environ`, 'utf8').includes(this.home)) process.kill(Number(pid), 'SIGKILL');
      } catch {
        // It has ended, or is another user's.
      }
    }
  }

  svc(...args) {
    return execFileSync(SVC, args, { env: this.env(), encoding: 'utf8' });
  }

  link() {
    return JSON.parse(this.svc('open', '--json')).url;
  }

  async call(method, at, body) {
    const reply = await fetch(`${this.url}${at}`, {
      method,
      headers: { Authorization: `Bearer ${this.token}`, 'Content-Type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await reply.text();
    if (!reply.ok) throw new Error(`${method} ${at}: ${reply.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  get(at) {
    return this.call('GET', at);
  }

  post(at, body = {}) {
    return this.call('POST', at, body);
  }

  async tool(name, args) {
    const reply = await this.post('/mcp', { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name, arguments: args } });
    if (reply.error || reply.result.isError) throw new Error(`${name}: ${JSON.stringify(reply)}`);
    return reply.result.structuredContent;
  }

  peer(name, more = {}) {
    return this.post('/v1/peers/register', { display_name: name, backend: 'claude-code', path: `/work/${name}`, session_id: `s-${name}`, ...more });
  }

  async task(title, lines = []) {
    const task = await this.post('/v1/tasks', { title });
    await this.print(task.task_id, lines);
    return task.task_id;
  }

  async print(task, lines) {
    for (let at = 0; at < lines.length; at += 1000) {
      await this.post(`/v1/tasks/${task}/events`, lines.slice(at, at + 1000).map((line) => ({ kind: 'frame', data: { line, kind: 'stdout' } })));
    }
  }

  end(task, data) {
    return this.post(`/v1/tasks/${task}/events`, { kind: 'terminal', data });
  }
}

let running = null;

export async function browser() {
  running ??= await puppeteer.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
  return running;
}

export async function closeBrowser() {
  await running?.close();
  running = null;
}

/** Serves the page's files from a folder, for whoever edits them: the daemon has those that it was built with. */
async function fromDisk(tab, page, folder) {
  const types = { js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml', html: 'text/html' };
  await page.setRequestInterception(true);
  page.on('request', (request) => {
    const { pathname, origin } = new URL(request.url());
    const isView = pathname === '/' || pathname.startsWith('/ui/');
    const name = isView ? 'index.html' : pathname.startsWith('/assets/') && pathname.slice(8);
    const file = name && path.join(folder, name);
    if (tab.daemon?.page !== origin || !file || !fs.existsSync(file) || request.method() !== 'GET') return request.continue();
    return request.respond({ contentType: types[file.split('.').pop()], headers: { 'Content-Security-Policy': "default-src 'self'" }, body: fs.readFileSync(file) });
  });
}

/** A window of a person of its own: cookies of one are none of another's. */
export class Tab {
  static async open({ width = 1280, height = 800, dark = false, reduced = false } = {}) {
    const tab = new Tab();
    tab.context = await (await browser()).createBrowserContext();
    tab.page = await tab.context.newPage();
    await tab.page.setViewport({ width, height });
    await tab.page.emulateMediaFeatures([
      { name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' },
      { name: 'prefers-reduced-motion', value: reduced ? 'reduce' : 'no-preference' },
    ]);
    if (process.env.SVC_ASSETS) await fromDisk(tab, tab.page, process.env.SVC_ASSETS);
    tab.problems = [];
    tab.foreign = [];
    tab.page.on('console', (message) => {
      if (message.type() === 'error') tab.problems.push(`${message.text()} ${message.location()?.url ?? ''}`);
    });
    tab.page.on('pageerror', (error) => tab.problems.push(String(error.stack ?? error)));
    tab.page.on('dialog', (dialog) => {
      tab.problems.push(`a dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    return tab;
  }

  static async signedIn(daemon, options) {
    const tab = await Tab.open(options);
    tab.daemon = daemon;
    tab.page.on('request', (request) => {
      const { origin, protocol } = new URL(request.url());
      if (protocol !== 'data:' && origin !== daemon.page) tab.foreign.push(request.url());
    });
    await tab.page.goto(daemon.link());
    await tab.live();
    return tab;
  }

  /** One more tab of the same person; hidden, as one that is opened in the background. */
  async another(at, { isHidden = false } = {}) {
    const page = await this.context.newPage();
    if (isHidden) await page.evaluateOnNewDocument(() => Object.defineProperty(document, 'hidden', { value: true }));
    if (process.env.SVC_ASSETS) await fromDisk(this, page, process.env.SVC_ASSETS);
    page.on('console', (message) => message.type() === 'error' && this.problems.push(message.text()));
    page.on('pageerror', (error) => this.problems.push(String(error.stack)));
    await page.goto(`${this.daemon.page}${at}`);
    return page;
  }

  live() {
    return this.page.waitForFunction(() => document.querySelector('.connection .state')?.textContent === 'live', { timeout: 20_000, polling: 50 });
  }

  async view(at) {
    await this.page.goto(`${this.daemon.page}${at}`);
    await this.live();
  }

  /** Waits until the view has this text. */
  has(text, timeout = 10_000, within = 'main') {
    const shows = (wanted, place) => document.querySelector(place)?.innerText.includes(wanted);
    return this.page.waitForFunction(shows, { timeout, polling: 50 }, text, within)
      .catch(async () => {
        throw new Error(`"${text}" does not show; there is:\n${(await this.text()).slice(0, 1500)}`);
      });
  }

  text() {
    return this.page.evaluate(() => document.querySelector('main')?.innerText ?? document.body.innerText);
  }

  async click(text) {
    const found = await this.page.evaluateHandle((wanted) => [...document.querySelectorAll('button, a, summary')].find((each) => each.innerText.trim() === wanted && each.offsetParent), text);
    if (!found.asElement()) throw new Error(`no button or link "${text}"; there is:\n${await this.text()}`);
    await found.asElement().click();
  }

  async close() {
    await this.context.close();
  }
}
