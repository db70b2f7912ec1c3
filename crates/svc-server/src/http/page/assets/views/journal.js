// Journal: what was tried and what came of it, how well predictions came true, and what belongs together.
import { html, useEffect, useMemo, useRef, useState } from '../lib.js';
import { callTool, get, post, query } from '../api.js';
import { List } from '../list.js';
import { go, path, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time } from '../time.js';
import { Action, Choice, Empty, Facts, Failure, Loading, Search, State, useRead, useSettled } from '../ui.js';

const STATES = ['', 'active', 'confirmed', 'falsified', 'abandoned'];
const DOMAINS = ['', 'debugging', 'refactoring', 'feature', 'testing', 'configuration', 'documentation', 'performance', 'security', 'integration'];
/** Words for people of states of records. */
const RECORD = { active: 'open' };
const TABS = [['', 'Records'], ['calibration', 'Calibration'], ['clusters', 'Clusters']];

/** The plot library, once a plot is to be seen. */
let plotting = null;
function plots() {
  plotting ??= new Promise((done, fail) => {
    const style = document.createElement('link');
    style.rel = 'stylesheet';
    style.href = '/assets/vendor/uplot.css';
    const script = document.createElement('script');
    script.src = '/assets/vendor/uplot.js';
    script.onload = () => done(window.uPlot);
    script.onerror = () => fail(new Error('The plots cannot be loaded.'));
    document.head.append(style, script);
  });
  return plotting;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function Plot({ data, options, label }) {
  const box = useRef();
  useEffect(() => {
    let plot;
    let isCurrent = true;
    const size = () => ({ width: Math.max(240, box.current.clientWidth), height: 260 });
    const watch = new ResizeObserver(() => plot?.setSize(size()));
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const draw = () => plots().then((Plotter) => {
      if (!isCurrent) return;
      plot?.destroy();
      plot = new Plotter({ ...options(), ...size() }, data, box.current);
    });
    draw();
    dark.addEventListener('change', draw);
    watch.observe(box.current);
    return () => {
      isCurrent = false;
      dark.removeEventListener('change', draw);
      watch.disconnect();
      plot?.destroy();
    };
  }, [data]);
  return html`<div class="plot" ref=${box} role="img" aria-label=${label}></div>`;
}

/** A dot for each value, the larger the more records it comes from. */
function dots(plot, series, counts) {
  const { ctx } = plot;
  const most = Math.max(1, ...counts);
  ctx.save();
  ctx.fillStyle = colour('--accent');
  plot.data[series].forEach((value, index) => {
    if (value === null) return;
    ctx.beginPath();
    const radius = (3 + 9 * Math.sqrt(counts[index] / most)) * devicePixelRatio;
    ctx.arc(plot.valToPos(plot.data[0][index], 'x', true), plot.valToPos(value, 'y', true), radius, 0, 2 * Math.PI);
    ctx.globalAlpha = 0.75;
    ctx.fill();
  });
  ctx.restore();
}

const axes = (more) => more.map((axis) => ({ stroke: colour('--muted'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') }, font: '12px system-ui', ...axis }));
const percent = (_, values) => values.map((value) => `${Math.round(value * 100)} %`);

function Calibration({ domain }) {
  const read = useRead(() => get(query('/v1/ghap/calibration', { domain })), [domain]);
  const data = read.value;
  const drawn = useMemo(() => {
    if (!data) return null;
    const means = data.bins.map((bin) => bin.mean);
    return {
      bins: [[0, ...means, 1], [0, ...means, 1], [null, ...data.bins.map((bin) => bin.confirmed / bin.records), null]],
      counts: [0, ...data.bins.map((bin) => bin.records), 0],
      weekCounts: data.weeks.map((week) => week.records),
      weeks: [data.weeks.map((week) => Date.parse(week.week) / 1000), data.weeks.map((week) => week.confirmed / week.records)],
    };
  }, [data]);
  if (read.error) return html`<${Failure} text=${read.error.message} again=${read.again} />`;
  if (!data) return html`<${Loading} of="counts" />`;
  if (!data.weeks.length) return html`<${Empty} title="No record has a verdict yet.">Once records end as confirmed or falsified, this shows how well predictions come true.<//>`;
  const square = () => ({
    scales: { x: { time: false, range: [0, 1] }, y: { range: [0, 1] } },
    hooks: { draw: [(plot) => dots(plot, 2, drawn.counts)] },
    axes: axes([{ values: percent, label: 'Stated probability', labelSize: 22 }, { values: percent, size: 56, label: 'Came true', labelSize: 22 }]),
    series: [{ label: 'stated', value: (_, value) => (value === null ? '' : `${Math.round(value * 100)} %`) },
      { label: 'as stated', stroke: colour('--muted'), dash: [4, 4], width: 1, points: { show: false } },
      { label: 'came true', stroke: colour('--accent'), width: 1, points: { show: false } }],
    cursor: { drag: { x: false, y: false } }, legend: { live: false },
  });
  const weekly = () => ({
    scales: { x: { time: true }, y: { range: [0, 1] } },
    hooks: { draw: [(plot) => dots(plot, 1, drawn.weekCounts)] },
    axes: axes([{ label: 'Week', labelSize: 22 }, { values: percent, size: 56, label: 'Confirmed', labelSize: 22 }]),
    series: [{ label: 'week' }, { label: 'confirmed', stroke: colour('--accent'), width: 1, points: { show: false } }],
    cursor: { drag: { x: false, y: false } }, legend: { live: false },
  });
  return html`<div class="plots"><figure><figcaption><h3>What was stated, and what happened</h3><p class="muted">On the dashed line predictions come true as often as their makers said. The larger a dot, the more records.</p></figcaption>
      ${data.bins.length ? html`<${Plot} data=${drawn.bins} options=${square} label="Stated probability against the share that came true; the table has the numbers" />
      <table><thead><tr><th scope="col">Stated</th><th scope="col" class="number">Records</th><th scope="col" class="number">Came true</th></tr></thead>
        <tbody>${data.bins.map((bin) => html`<tr><th scope="row">${Math.round(bin.from * 100)} to ${Math.round(bin.from * 100 + 10)} %</th><td class="number">${bin.records}</td><td class="number">${bin.confirmed} (${Math.round((100 * bin.confirmed) / bin.records)} %)</td></tr>`)}</tbody></table>`
      : html`<${Empty} title="No record stated a probability." />`}</figure>
    <figure><figcaption><h3>Hit rate by week</h3><p class="muted">Share of verdicts that confirmed the hypothesis.</p></figcaption>
      ${data.weeks.length > 1 ? html`<${Plot} data=${drawn.weeks} options=${weekly} label="Hit rate by week; the table has the numbers" />` : html`<${Empty} title="One week is no trend.">From the second week on this shows how the hit rate moves.<//>`}
      <table><thead><tr><th scope="col">Week of</th><th scope="col" class="number">Records</th><th scope="col" class="number">Confirmed</th></tr></thead>
        <tbody>${data.weeks.slice(-12).reverse().map((week) => html`<tr><th scope="row">${week.week.slice(0, 10)}</th><td class="number">${week.records}</td><td class="number">${week.confirmed} (${Math.round((100 * week.confirmed) / week.records)} %)</td></tr>`)}</tbody></table></figure></div>`;
}

/** Words that say nothing of what a record is about. */
const COMMON = new Set('the a an and or of to in on at is are was be it its by for with from that this not no as into than then when does do has have after before why how what which where all any out up down over under only more most each same other new old fix find make use add get set'.split(' '));

/** The words of a cluster: those that most of its records have, and few of other clusters. */
function wordsOf(goals, others) {
  const of = (text) => new Set(String(text).toLowerCase().match(/[\p{L}\p{N}_]{3,}/gu)?.filter((word) => !COMMON.has(word) && !/^\d+$/.test(word)) ?? []);
  const counted = (texts) => texts.reduce((counts, text) => {
    of(text).forEach((word) => counts.set(word, (counts.get(word) ?? 0) + 1));
    return counts;
  }, new Map());
  const own = counted(goals);
  const rest = counted(others);
  const worth = ([word, count]) => count / goals.length - (rest.get(word) ?? 0) / Math.max(1, others.length);
  return [...own].filter(([, count]) => goals.length < 2 || count > 1).sort((one, other) => worth(other) - worth(one)).slice(0, 5).map(([word]) => word);
}

async function readClusters(axis) {
  const { clusters } = await callTool('get_clusters', { axis });
  const read = async (cluster) => ({ ...cluster, members: (await callTool('get_cluster_members', { cluster_id: cluster.cluster_id })).members });
  const all = await Promise.all(clusters.map(read));
  const goals = (cluster) => cluster.members.map((member) => member.goal);
  return all.map((cluster) => ({ ...cluster, words: wordsOf(goals(cluster), all.filter((other) => other !== cluster).flatMap(goals)) }));
}

function Clusters() {
  const [axis, setAxis] = useState('full');
  const [open, setOpen] = useState('');
  const [find, setFind] = useState('');
  const read = useRead(() => readClusters(axis), [axis]);
  const clusters = read.value ?? [];
  const shown = clusters.filter((cluster) => [...cluster.words, ...cluster.members.map((member) => member.goal)].join(' ').toLowerCase().includes(find.toLowerCase()));
  return html`<div class="bar"><${Search} value=${find} set=${setFind} label="Search clusters" /><${Choice} label="By" value=${axis} set=${setAxis} options=${[['full', 'all of it'], ['strategy', 'strategy'], ['surprise', 'surprise'], ['root_cause', 'root cause']]} /></div>
    ${read.error ? html`<${Failure} text=${read.error.message} again=${read.again} />` : !read.value ? html`<${Loading} of="clusters" />`
      : !clusters.length ? html`<${Empty} title="No clusters yet.">They are made when about twenty records are alike enough.<//>`
      : !shown.length ? html`<${Empty} title="No cluster matches." />`
      : html`<ul class="clusters">${shown.map((cluster) => html`<li key=${cluster.cluster_id} data-row><button class="quiet wide-button" aria-expanded=${open === cluster.cluster_id} onClick=${() => setOpen(open === cluster.cluster_id ? '' : cluster.cluster_id)}>
          <span class="strong"><bdi>${line(cluster.words.join(', ') || cluster.members[0]?.goal || cluster.cluster_id, 120)}</bdi></span> <span class="muted">${cluster.size ?? cluster.count ?? cluster.members.length} records</span>
          <span class="muted last"><bdi>${line(cluster.members[0]?.goal ?? '', 160)}</bdi></span></button>
          ${open === cluster.cluster_id && html`<ul class="plain">${cluster.members.map((member) => html`<li><a href=${path('journal', member.ghap_id ?? member.id)}><bdi>${line(member.goal ?? member.text ?? member.id, 160)}</bdi></a></li>`)}</ul>`}</li>`)}</ul>`}`;
}

function Record({ id, back }) {
  const { ghap, sessions, loaded } = useStore('ghap', 'sessions');
  const live = ghap.get(id);
  const read = useRead(() => get(`/v1/ghap/${encodeURIComponent(id)}`), [id, live?.updated_at]);
  const record = read.value;
  if (!record) return read.error ? html`<section class="detail" aria-label="Record"><${Failure} text=${read.error.message} again=${read.again} /></section>` : html`<section class="detail" aria-label="Record"><${Loading} of="the record" /></section>`;
  const isOrphan = record.status === 'active' && loaded.has('sessions') && !sessions.has(record.session_id);
  const part = (name, value) => [name, value && html`<${Text} value=${value} />`];
  return html`<article class="detail" aria-label="Record"><header class="bar"><a class="back" href=${back}>Journal</a><h2><bdi>${line(record.goal, 200)}</bdi></h2>
      ${isOrphan && html`<${Action} ask="Give this record up?" run=${() => post(`/v1/ghap/${encodeURIComponent(record.id)}/abandon`).then(read.again)}>Give up<//>`}</header>
    ${isOrphan && html`<p class="muted">Its session is over. The next session in this project can take it over with <code>adopt_ghap</code>.</p>`}
    <${Facts} of=${[['Outcome', html`<${State} of=${record.status} words=${RECORD} />`], ['Tier', record.confidence_tier && html`<${State} of=${record.confidence_tier} />`],
      ['Probability', record.probability === undefined || record.probability === null ? '' : `${Math.round(record.probability * 100)} %`],
      part('Hypothesis', record.hypothesis), part('Action', record.action), part('Prediction', record.prediction), part('Result', record.result), part('Surprise', record.surprise),
      part('Root cause', record.root_cause && [record.root_cause.category, record.root_cause.description].filter(Boolean).join(': ')),
      part('Lesson', record.lesson && (record.lesson.takeaway ?? record.lesson.what_worked ?? JSON.stringify(record.lesson))),
      ['Domain', record.domain], ['Strategy', record.strategy], ['Session', html`<code>${line(record.session_id, 80)}</code>`], ['Project', record.project && line(record.project, 160)],
      ['Changed', record.iteration_count > 1 ? `${record.iteration_count - 1} times` : ''], ['Began', html`<${Time} at=${record.created_at} />`], ['Ended', record.resolved_at && html`<${Time} at=${record.resolved_at} />`]]} />
    ${record.history?.length > 0 && html`<h3>What it said before</h3><ol class="plain">${record.history.map((each) => html`<li><${Text} value=${each.hypothesis ?? JSON.stringify(each)} cut=${400} /></li>`)}</ol>`}
    ${record.notes?.length > 0 && html`<h3>Notes</h3><ul class="plain">${record.notes.map((note) => html`<li><${Text} value=${note} cut=${400} /></li>`)}</ul>`}</article>`;
}

function Records({ route }) {
  const state = useStore('ghap');
  const status = route.query.get('status') ?? '';
  const domain = route.query.get('domain') ?? '';
  const [find, setFind] = useState('');
  const wanted = useSettled(find, 300).trim();
  const [pages, setPages] = useState([]);
  const filters = { status, domain };
  const first = useRead(async () => {
    if (wanted) return get(query('/v1/ghap/search', { q: wanted, status, domain, limit: 50 }));
    const page = await get(query('/v1/ghap', { status, domain, limit: 200 }));
    // Without a state the list holds what is over; what is under way comes first.
    if (!status) page.ghap = [...[...state.ghap.values()].filter((record) => record.status === 'active' && (!domain || record.domain === domain)), ...page.ghap];
    return page;
  }, [wanted, status, domain, wanted ? [...state.ghap.values()].filter((record) => record.status === 'active').length : 0]);
  useEffect(() => setPages([]), [wanted, status, domain]);
  const known = new Map();
  for (const record of [first.value?.ghap ?? [], ...pages.map((page) => page.ghap)].flat()) known.set(record.id, state.ghap.get(record.id) ?? record);
  if (!wanted) {
    // Records that began or ended since are in the store.
    for (const record of state.ghap.values()) if ((!status || record.status === status) && (!domain || record.domain === domain)) known.set(record.id, record);
  }
  const rows = wanted ? [...known.values()] : [...known.values()].sort((one, other) => other.created_at.localeCompare(one.created_at));
  const cursor = (pages[pages.length - 1] ?? first.value)?.next_cursor;
  const more = async () => {
    const page = await get(query('/v1/ghap', { ...filters, limit: 200, cursor }));
    setPages((all) => [...all, page]);
  };
  return html`<div class="bar"><${Search} value=${find} set=${setFind} label="Search records" />
      <${Choice} label="Outcome" value=${status} set=${(value) => setQuery({ status: value })} options=${STATES.map((each) => [each, each === 'active' ? 'open' : each || 'all'])} />
      <${Choice} label="Domain" value=${domain} set=${(value) => setQuery({ domain: value })} options=${DOMAINS} />
      <span class="muted">${rows.length}${cursor ? '+' : ''}</span>${cursor && !wanted && html`<${Action} run=${more}>More<//>`}</div>
    ${first.error ? html`<${Failure} text=${first.error.message} again=${first.again} />` : !first.value ? html`<${Loading} of="records" />`
      : !rows.length ? html`<${Empty} title=${wanted || status || domain ? 'No record matches.' : 'Nothing was tried yet.'}>Agents record an attempt with the tool <code>start_ghap</code>, and its result with <code>resolve_ghap</code>.<//>`
      : html`<${List} class="records" label="Records" count=${rows.length} height=${44} keyOf=${(index) => rows[index].id} onOpen=${(index) => go(path('journal', rows[index].id, Object.fromEntries(route.query)))}
        row=${(index) => {
          const record = rows[index];
          return html`<div class=${`task${record.id === route.id ? ' open' : ''}`}><a class="title" href=${path('journal', record.id, Object.fromEntries(route.query))}><bdi>${line(record.goal, 160)}</bdi></a>
            <${State} of=${record.status} words=${RECORD} /><span class="muted sub">${[record.domain, record.strategy, record.confidence_tier, record.probability === undefined || record.probability === null ? '' : `${Math.round(record.probability * 100)} %`].filter(Boolean).join(' · ')}</span><${Time} at=${record.resolved_at ?? record.created_at} /></div>`;
        }} />`}`;
}

export function Journal({ route }) {
  const tab = route.query.get('tab') ?? '';
  const { id } = route;
  return html`<div class=${`split${id ? ' has-detail' : ''}`}><section class="index" aria-label="Journal"><header class="bar"><h2>Journal</h2>
      <div class="tabs" role="group" aria-label="Parts">${TABS.map(([key, text]) => html`<a href=${path('journal', '', { tab: key })} aria-current=${key === tab ? 'true' : undefined}>${text}</a>`)}</div></header>
    ${tab === 'calibration' ? html`<div class="pane" tabindex="0" role="region" aria-label="Part"><${Calibration} domain="" /></div>` : tab === 'clusters' ? html`<div class="pane" tabindex="0" role="region" aria-label="Part"><${Clusters} /></div>` : html`<${Records} route=${route} />`}</section>
    ${id ? html`<${Record} key=${id} id=${id} back=${path('journal', '', Object.fromEntries(route.query))} />` : ''}</div>`;
}
