// Health: what the daemon does, what it holds, and who is signed in.
import { html, useEffect, useState } from '../lib.js';
import { api, get } from '../api.js';
import { useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time, duration } from '../time.js';
import { Action, Facts, Failure, Loading, Search, State, bytes, useRead } from '../ui.js';

const WINDOW = 60;

/** Samples of the Prometheus text format: name, labels, value. */
function samples(text) {
  const rows = [];
  for (const row of text.split('\n')) {
    const match = row.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value]));
    rows.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return rows;
}

/** The bound of the bucket of a histogram below which this share lies. */
function quantile(rows, name, share) {
  const buckets = new Map();
  for (const row of rows) {
    if (row.name === `${name}_bucket`) buckets.set(Number(row.labels.le.replace('+Inf', 'Infinity')), (buckets.get(Number(row.labels.le.replace('+Inf', 'Infinity'))) ?? 0) + row.value);
  }
  const sorted = [...buckets].sort((one, other) => one[0] - other[0]);
  const total = sorted[sorted.length - 1]?.[1] ?? 0;
  if (!total) return null;
  return sorted.find(([, count]) => count >= total * share)?.[0] ?? null;
}

/** Counts of the last sixty seconds, and how many of those this page knows. */
function rate(series, since) {
  const known = Math.max(1, Math.min(WINDOW, Math.round((Date.now() - since) / 1000)));
  const now = Math.floor(Date.now() / 1000);
  const counts = new Array(WINDOW).fill(0);
  for (const [second, count] of series) {
    const at = second - (now - WINDOW) - 1;
    if (at >= 0 && at < WINDOW) counts[at] += count;
  }
  return { counts, known };
}

/** Sixty seconds as bars. */
function Bars({ of, label }) {
  const { counts, known } = of;
  const most = Math.max(1, ...counts);
  const total = counts.slice(WINDOW - known).reduce((sum, count) => sum + count, 0);
  const each = total / known;
  return html`<div class="bars"><p><span class="big">${!total ? 0 : each < 1 ? each.toFixed(2) : each < 10 ? each.toFixed(1) : Math.round(each)}</span> <span class="muted">${label} a second, over ${known === WINDOW ? 'a minute' : `${known} s`}${total > 0 && `, at most ${Math.max(...counts)} in one`}</span></p>
    <svg viewBox="0 0 240 40" preserveAspectRatio="none" role="img" aria-label=${`${label} in the last ${known} seconds, at most ${Math.max(...counts)} in one`}>
      ${counts.map((count, index) => count > 0 && html`<rect x=${index * 4} width="3" y=${40 - Math.max(1, (38 * count) / most)} height=${Math.max(1, (38 * count) / most)} />`)}</svg></div>`;
}

function Rates() {
  const state = useStore('events');
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<div class="panels"><${Bars} of=${rate(state.rates.events, state.rates.since)} label="events written" /><${Bars} of=${rate(state.rates.deliveries, state.rates.since)} label="messages handed over" /></div>`;
}

function Browsers() {
  const read = useRead(() => get('/v1/tokens?limit=500'), []);
  if (read.error) return html`<${Failure} text=${read.error.message} again=${read.again} />`;
  if (!read.value) return html`<${Loading} of="tokens" />`;
  const now = new Date().toISOString();
  const good = read.value.tokens.filter((token) => !token.revoked_at && token.expires_at > now);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table of who may come in"><table><thead><tr><th scope="col">Kind</th><th scope="col">Session</th><th scope="col">Project</th><th scope="col">Last used</th><th scope="col">Ends</th><th scope="col"><span class="sr">Action</span></th></tr></thead>
    <tbody>${good.map((token) => html`<tr key=${token.token_id} data-row><td>${token.kind}</td><th scope="row"><bdi>${line(token.session, 60)}</bdi></th><td>${line(token.project ?? '', 80)}</td><td><${Time} at=${token.last_used_at} /></td><td><${Time} at=${token.expires_at} /></td>
      <td><${Action} ask="Take it back?" run=${() => api('DELETE', `/v1/tokens/${encodeURIComponent(token.token_id)}`).then(read.again)}>Revoke<//></td></tr>`)}</tbody></table></div>`;
}

/** What the disk has left, and when that will be used up. */
function Disk({ store }) {
  const { growth, free_bytes: free } = store;
  const left = free === undefined ? 'free space unknown' : `${bytes(free)} free`;
  if (!growth) return html`${left}; how fast the database grows is known after a day`;
  const { bound, at } = growth.reaches ?? {};
  const then = {
    disk: html`, the disk is full <${Time} at=${at} />`,
    'store.max_bytes': html`, it has reached <code>store.max_bytes</code> <${Time} at=${at} />`,
  }[bound] ?? html`, until <code>${bound}</code> holds its size <${Time} at=${at} />`;
  return html`${left}; the database grows by ${bytes(growth.bytes_per_day)} a day${bound && then}`;
}

/** First whether all is well: what `svc doctor` finds, and what the daemon says of itself. */
function Verdict({ doctor, value, connection }) {
  const own = [];
  if (connection.status === 'away') own.push({ check: 'daemon', level: 'fail', detail: 'It does not answer.', advice: '`svc status` says whether it runs.' });
  const failures = value?.rows.find((row) => row.name === 'svc_store_failures_total')?.value;
  if (failures > 0) own.push({ check: 'database', level: 'warn', detail: `${failures.toLocaleString('en')} commits have failed since the daemon started.`, advice: '`svc logs` has the reasons.' });
  const found = doctor.value?.checks ?? [];
  const wrong = [...own, ...found.filter((each) => each.level !== 'ok')];
  const fine = found.filter((each) => each.level === 'ok');
  if (doctor.error) return html`<${Failure} text=${doctor.error.message} again=${doctor.again} />`;
  if (!doctor.value && !wrong.length) return html`<${Loading} of="findings" />`;
  return html`${wrong.length ? html`<ul class="findings">${wrong.map((each) => html`<li data-row><${State} of=${each.level === 'fail' ? 'failed' : 'warning'} /> <span class="strong">${each.check}</span> <${Text} value=${each.detail} cut=${600} />
      ${each.advice && html`<p class="muted"><${Text} value=${each.advice} cut=${400} /></p>`}</li>`)}</ul>` : html`<p class="well"><${State} of="ok" /> All is well.</p>`}
    <details><summary>${fine.length} checks are fine</summary><${Facts} of=${fine.map((each) => [each.check, html`<${Text} value=${each.detail} cut=${300} />`])} /></details>
    <p><button onClick=${doctor.again} disabled=${doctor.isLoading}>Check again</button></p>`;
}

export function Health() {
  const state = useStore('health', 'connection');
  const read = useRead(async () => {
    const [health, metrics] = await Promise.all([get('/v1/health'), get('/metrics')]);
    return { health, rows: samples(String(metrics)), at: new Date().toISOString() };
  }, [state.connection.status === 'live']);
  const doctor = useRead(() => get('/v1/doctor'), [state.connection.status === 'live']);
  const [find, setFind] = useState('');
  const has = ([name]) => name.toLowerCase().includes(find.toLowerCase());
  const value = read.value;
  const sample = (name) => value?.rows.find((row) => row.name === name)?.value;
  const number = (name) => (sample(name) === undefined ? undefined : sample(name).toLocaleString('en'));
  const latency = (name, share) => {
    const bound = value && quantile(value.rows, name, share);
    return bound ? (bound === Infinity ? 'beyond all buckets' : `≤ ${bound * 1000} ms`) : '';
  };
  const backup = value?.health.store.last_backup;
  const held = value?.rows.filter((row) => row.name === 'svc_budget_used' && row.value > 0) ?? [];
  return html`<section aria-labelledby="doctor"><header class="bar"><h2 id="doctor">Health</h2></header><${Verdict} doctor=${doctor} value=${value} connection=${state.connection} /></section>
  <section aria-labelledby="rates"><header class="bar"><h2 id="rates">Rates</h2></header><${Rates} /></section>
  <section aria-labelledby="daemon"><header class="bar"><h2 id="daemon">Daemon</h2><span class="muted">${value && html`read <${Time} at=${value.at} />`}</span><button onClick=${read.again}>Read again</button><${Search} value=${find} set=${setFind} label="Search numbers" /></header>
    ${read.error ? html`<${Failure} text=${read.error.message} again=${read.again} />` : !value ? html`<${Loading} of="numbers" />` : html`<${Facts} of=${[
      ['Version', `${value.health.version} (${value.health.build.target}, ${value.health.build.profile})`],
      ['Up', duration(value.health.uptime_seconds * 1000)],
      ['Database', value.health.store.path && html`<code>${line(value.health.store.path, 200)}</code>`],
      ['Size on disk', `${bytes(value.health.store.size_bytes)} and ${bytes(value.health.store.wal_bytes)} of write-ahead log`],
      ['Disk', html`<${Disk} store=${value.health.store} />`],
      ['Schema', value.health.store.schema_version],
      ['Events', `to ${value.health.store.head.toLocaleString('en')}${value.health.store.trimmed ? `, removed to ${value.health.store.trimmed.toLocaleString('en')}` : ''}`],
      ['Commits', number('svc_store_commits_total')],
      ['Writes in them', number('svc_store_jobs_total')],
      ['Failed commits', number('svc_store_failures_total')],
      ['Queued writes', value.health.store.queued],
      ['Readers of streams', number('svc_subscribers')],
      ['Commit, median', latency('svc_store_commit_seconds', 0.5)], ['Commit, p99', latency('svc_store_commit_seconds', 0.99)],
      ['Request, median', latency('svc_http_request_duration_seconds', 0.5)], ['Request, p99', latency('svc_http_request_duration_seconds', 0.99)],
      ['Last backup', backup ? html`<${Time} at=${backup.at} />, ${bytes(backup.bytes)}, <code>${line(backup.path, 200)}</code>` : html`none: <code>svc backup FILE</code> makes one while the daemon runs`],
    ].filter(has)} />`}</section>
  ${held.length > 0 && html`<section aria-labelledby="held"><header class="bar"><h2 id="held">In use by sessions</h2></header><${Facts} of=${held.map((row) => [String(row.labels.kind ?? '').replaceAll('_', ' '), row.labels.kind?.includes('bytes') ? bytes(row.value) : row.value.toLocaleString('en')])} /></section>`}
  <section aria-labelledby="tokens"><header class="bar"><h2 id="tokens">Who may come in</h2></header><${Browsers} /></section>`;
}
