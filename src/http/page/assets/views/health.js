// Health: what the daemon does, what it holds, and who is signed in.
import { html, useEffect, useState } from '../lib.js';
import { api, get } from '../api.js';
import { useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time, duration } from '../time.js';
import { Action, Facts, Failure, Loading, State, bytes, useRead } from '../ui.js';

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

function rate(series) {
  const now = Math.floor(Date.now() / 1000);
  const counts = new Array(WINDOW).fill(0);
  for (const [second, count] of series) {
    const at = second - (now - WINDOW) - 1;
    if (at >= 0 && at < WINDOW) counts[at] += count;
  }
  return counts;
}

/** Sixty seconds as bars. */
function Bars({ counts, label }) {
  const most = Math.max(1, ...counts);
  const total = counts.reduce((sum, count) => sum + count, 0);
  return html`<div class="bars"><p><span class="big">${(total / WINDOW).toFixed(total < WINDOW ? 1 : 0)}</span> <span class="muted">${label} a second, over a minute</span></p>
    <svg viewBox="0 0 240 40" preserveAspectRatio="none" role="img" aria-label=${`${label} in the last 60 seconds, at most ${most} in one`}>
      ${counts.map((count, index) => count > 0 && html`<rect x=${index * 4} width="3" y=${40 - Math.max(1, (38 * count) / most)} height=${Math.max(1, (38 * count) / most)} />`)}</svg></div>`;
}

function Rates() {
  const state = useStore('events');
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<div class="panels"><${Bars} counts=${rate(state.rates.events)} label="events written" /><${Bars} counts=${rate(state.rates.deliveries)} label="deliveries" /></div>`;
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

/** What `svc doctor` finds; what is fine is one line. */
function Installation() {
  const read = useRead(() => get('/v1/doctor'), []);
  if (read.error) return html`<${Failure} text=${read.error.message} again=${read.again} />`;
  if (!read.value) return html`<${Loading} of="findings" />`;
  const wrong = read.value.checks.filter((each) => each.level !== 'ok');
  const fine = read.value.checks.filter((each) => each.level === 'ok');
  return html`<ul class="findings">${wrong.map((each) => html`<li data-row><${State} of=${each.level === 'fail' ? 'failed' : 'warning'} /> <span class="strong">${each.check}</span> <${Text} value=${each.detail} cut=${600} />
      ${each.advice && html`<p class="muted"><${Text} value=${each.advice} cut=${400} /></p>`}</li>`)}</ul>
    <details><summary>${wrong.length ? '' : 'Nothing is wrong: '}${fine.length} checks are fine</summary><${Facts} of=${fine.map((each) => [each.check, html`<${Text} value=${each.detail} cut=${300} />`])} /></details>
    <p><button onClick=${read.again} disabled=${read.isLoading}>Look again</button></p>`;
}

export function Health() {
  const state = useStore('health', 'connection');
  const read = useRead(async () => {
    const [health, metrics] = await Promise.all([get('/v1/health'), get('/metrics')]);
    return { health, rows: samples(String(metrics)), at: new Date().toISOString() };
  }, [state.connection.status === 'live']);
  const value = read.value;
  const sample = (name) => value?.rows.find((row) => row.name === name)?.value;
  const number = (name) => (sample(name) === undefined ? undefined : sample(name).toLocaleString('en'));
  const latency = (name, share) => {
    const bound = value && quantile(value.rows, name, share);
    return bound ? (bound === Infinity ? 'beyond all buckets' : `≤ ${bound * 1000} ms`) : '';
  };
  const backup = value?.health.store.last_backup;
  const held = value?.rows.filter((row) => row.name === 'svc_budget_used' && row.value > 0) ?? [];
  return html`<section aria-labelledby="rates"><header class="bar"><h2 id="rates">Now</h2></header><${Rates} /></section>
  <section aria-labelledby="daemon"><header class="bar"><h2 id="daemon">Daemon</h2><span class="muted">${value && html`read <${Time} at=${value.at} />`}</span><button onClick=${read.again}>Read again</button></header>
    ${read.error ? html`<${Failure} text=${read.error.message} again=${read.again} />` : !value ? html`<${Loading} of="numbers" />` : html`<${Facts} of=${[
      ['Version', `${value.health.version} (${value.health.build.target}, ${value.health.build.profile})`],
      ['Up', duration(value.health.uptime_seconds * 1000)],
      ['Database', value.health.store.path && html`<code>${line(value.health.store.path, 200)}</code>`],
      ['Size on disk', `${bytes(value.health.store.size_bytes)} and ${bytes(value.health.store.wal_bytes)} of write-ahead log`],
      ['Schema', value.health.store.schema_version],
      ['Events', `to ${value.health.store.head.toLocaleString('en')}${value.health.store.trimmed ? `, removed to ${value.health.store.trimmed.toLocaleString('en')}` : ''}`],
      ['Commits', number('svc_store_commits_total')],
      ['Writes in them', number('svc_store_jobs_total')],
      ['Failed commits', number('svc_store_failures_total')],
      ['Writes that wait', value.health.store.queued],
      ['Readers of streams', number('svc_subscribers')],
      ['Commit, median', latency('svc_store_commit_seconds', 0.5)], ['Commit, p99', latency('svc_store_commit_seconds', 0.99)],
      ['Request, median', latency('svc_http_request_duration_seconds', 0.5)], ['Request, p99', latency('svc_http_request_duration_seconds', 0.99)],
      ['Last backup', backup ? html`<${Time} at=${backup.at} />, ${bytes(backup.bytes)}, <code>${line(backup.path, 200)}</code>` : html`none: <code>svc backup FILE</code> makes one while the daemon runs`],
    ]} />`}</section>
  ${held.length > 0 && html`<section aria-labelledby="held"><header class="bar"><h2 id="held">What sessions hold</h2></header><${Facts} of=${held.map((row) => [String(row.labels.kind ?? '').replaceAll('_', ' '), row.labels.kind?.includes('bytes') ? bytes(row.value) : row.value.toLocaleString('en')])} /></section>`}
  <section aria-labelledby="doctor"><header class="bar"><h2 id="doctor">Installation</h2></header><${Installation} /></section>
  <section aria-labelledby="tokens"><header class="bar"><h2 id="tokens">Who may come in</h2></header><${Browsers} /></section>`;
}
