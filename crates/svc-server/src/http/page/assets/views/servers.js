// Servers: child MCP servers with their next action; and all tools by whose they are, to look up and to call.
import { html, useMemo, useRef, useState } from '../lib.js';
import { callTool, get, post, query } from '../api.js';
import { path } from '../router.js';
import { Changes, FileApproval, Login, sourceUrl } from '../sources.js';
import { load, useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time } from '../time.js';
import { Action, Empty, Facts, Failure, Loading, Search, State, useRead } from '../ui.js';

async function tools() {
  const all = [];
  let cursor;
  do {
    const page = await get(query('/v1/tools', { limit: 500, cursor }));
    all.push(...page.tools);
    cursor = page.next_cursor;
  } while (cursor);
  return all;
}

/** What a field of a form becomes as JSON; `undefined` if it is left out. */
function value(schema, text) {
  if (text === '' || text === undefined) return undefined;
  const types = [].concat(schema.type ?? (schema.anyOf ?? []).map((each) => each.type)).filter(Boolean);
  if (types.includes('integer') || types.includes('number')) return Number(text);
  if (types.includes('boolean')) return text === 'true';
  if (types.includes('string') || schema.enum || schema.const) return text;
  return JSON.parse(text);
}

function resolve(schema, root) {
  let known = schema;
  for (let depth = 0; known?.$ref && depth < 5; depth += 1) known = known.$ref.replace(/^#\//, '').split('/').reduce((at, key) => at?.[key], root);
  const inner = known?.anyOf?.find((each) => each.type !== 'null');
  return inner && !known.type ? { ...resolve(inner, root), description: known.description } : known ?? {};
}

function Field({ name, schema, isRequired, text, set }) {
  const words = schema.enum ?? schema.oneOf?.map((each) => each.const).filter(Boolean);
  const isBoolean = schema.type === 'boolean';
  const id = `argument-${name}`;
  return html`<div class="field"><label for=${id}>${name}${isRequired && html` <span class="muted">required</span>`}</label>
    ${words?.length || isBoolean
      ? html`<select id=${id} value=${text} onChange=${(event) => set(event.target.value)}><option value=""></option>${(isBoolean ? ['true', 'false'] : words).map((word) => html`<option value=${word}>${word}</option>`)}</select>`
      : html`<textarea id=${id} rows="1" value=${text} onInput=${(event) => set(event.target.value)} spellcheck=${false}></textarea>`}
    ${schema.description && html`<p class="muted">${line(schema.description, 400)}</p>`}</div>`;
}

function Tool({ tool }) {
  const [fields, setFields] = useState({});
  const [result, setResult] = useState(null);
  const root = tool.input_schema ?? {};
  const required = root.required ?? [];
  const names = Object.keys(root.properties ?? {}).sort((one, other) => required.includes(other) - required.includes(one));
  const isReading = tool.annotations?.readOnlyHint;
  const call = async () => {
    setResult(null);
    const args = {};
    for (const name of names) {
      let given;
      try {
        given = value(resolve(root.properties[name], root), fields[name]);
      } catch {
        throw new Error(`${name}: this is no JSON`);
      }
      if (given !== undefined) args[name] = given;
    }
    setResult(await callTool(tool.name, args));
  };
  return html`<article class="detail" aria-label="Tool"><header class="bar"><a class="back" href=${path('servers', '', { tab: 'tools' })}>Tools</a><h2>${line(tool.name, 100)}</h2></header>
    <p class="prose"><${Text} value=${tool.description} cut=${1500} /></p>
    <div class="form">${names.map((name) => html`<${Field} key=${name} name=${name} schema=${resolve(root.properties[name], root)} isRequired=${required.includes(name)} text=${fields[name] ?? ''} set=${(text) => setFields({ ...fields, [name]: text })} />`)}
      <p><${Action} class="primary" ask=${isReading ? undefined : 'This may change something. Call it?'} run=${call}>Call<//></p></div>
    ${result !== null && html`<h3>Result</h3><pre class="data" tabindex="0"><${Text} value=${JSON.stringify(result, null, 2)} cut=${20000} /></pre>`}</article>`;
}

/** What a person can do from here, by state; what takes a terminal is said by the server's next action. */
const ACTIONS = { disabled: [['Enable', 'enable']], hidden: [], misconfigured: [], pending_approval: [], needs_auth: [['Disable', 'disable']], failed: [['Start again', 'reconnect'], ['Disable', 'disable']], backing_off: [['Start now', 'reconnect'], ['Disable', 'disable']] };
const WORKING = [['Reconnect', 'reconnect'], ['Disable', 'disable']];

function Errors({ source }) {
  const [log, setLog] = useState(null);
  const read = () => get(sourceUrl(source, 'log')).then((reply) => setLog(reply.log));
  return html`<p><${Action} run=${read}>${log === null ? 'Show its error output' : 'Read again'}<//></p>
    ${log !== null && (log ? html`<pre class="data" tabindex="0"><${Text} value=${log} cut=${20000} /></pre>` : html`<p class="muted">It wrote nothing there.</p>`)}`;
}

function Source({ source, isChosen }) {
  const act = (name) => post(sourceUrl(source, name)).then(() => load('sources'));
  const counts = [['tools', source.tools], ['resources', source.resources], ['prompts', source.prompts]].filter(([, count]) => count);
  return html`<li data-row class=${isChosen ? 'chosen' : ''}><details open=${isChosen}><summary><span class="strong"><bdi>${line(source.name, 60)}</bdi></span> <${State} of=${source.state} />
      ${source.changed > 0 && html`<${State} of="changed" />`}<span class="muted">${counts.map(([name, count]) => `${count} ${count === 1 ? name.slice(0, -1) : name}`).join(', ')}</span> <${Time} at=${source.since} />
      ${source.reason && html`<span class="because"><bdi>${line(source.reason, 300)}</bdi></span>`}${source.next_action && html`<span class="because"><span class="muted">Next:</span> <bdi>${line(source.next_action, 200)}</bdi></span>`}
      ${source.runs && html`<span class="because"><span class="muted">Runs:</span> <code><bdi>${line(source.runs, 300)}</bdi></code></span>`}</summary>
    ${source.state === 'pending_approval' && html`<${FileApproval} sources=${[source]} />`}
    ${source.changed > 0 && html`<${Changes} source=${source} />`}
    ${source.state === 'needs_auth' && html`<p><${Login} source=${source} /></p>`}
    <p class="answers">${(ACTIONS[source.state] ?? WORKING).map(([label, name]) => html`<${Action} key=${name} ask=${name === 'disable' ? 'Turn it off for good?' : undefined} run=${() => act(name)}>${label}<//>`)}</p>
    <${Facts} of=${[['Named in', source.from && line(source.from, 200)], ['Hidden by', source.hidden_by && line(source.hidden_by, 200)], ['Project', source.project && html`<code>${line(source.project, 200)}</code>`], ['Transport', source.transport], ['Sharing', source.sharing], ['Process', source.pid], ['Attempt', source.attempt], ['Next start', source.next_at && html`<${Time} at=${source.next_at} />`],
      ['Instances', source.instances?.length ? source.instances.map((each) => `${line(each.key, 80)} ${each.state}`).join(', ') : ''], ['Warnings', source.warnings?.map((each) => line(each, 300)).join(' ')]]} />
    ${!['hidden', 'pending_approval', 'misconfigured'].includes(source.state) && html`<${Errors} source=${source} />`}</details></li>`;
}

/** Those that need a person first, then by name; entries that do not count last. */
const URGENCY = ['pending_approval', 'needs_auth', 'misconfigured', 'failed', 'backing_off', 'pending', 'connecting', 'connected', 'disabled', 'hidden'];
const byUrgency = (one, other) => URGENCY.indexOf(one.state) - URGENCY.indexOf(other.state) || one.name.localeCompare(other.name);

/** The tools by whose they are: those of svc itself last, as they are always there. */
function groupsOf(tools, names) {
  const groups = new Map();
  for (const tool of tools) {
    const server = names.find((name) => tool.name.startsWith(`${name}__`)) ?? (tool.name.includes('__') ? tool.name.split('__')[0] : '');
    groups.set(server, [...(groups.get(server) ?? []), tool]);
  }
  return [...groups].sort(([one], [other]) => Number(!one) - Number(!other) || one.localeCompare(other));
}

function ToolGroup({ server, tools, chosen, isOpen }) {
  const cut = server ? server.length + 2 : 0;
  return html`<details class="group" open=${isOpen}><summary><span class="strong"><bdi>${server ? line(server, 60) : 'svc itself'}</bdi></span> <span class="muted">${tools.length} ${tools.length === 1 ? 'tool' : 'tools'}</span></summary>
    <ul class="threads">${tools.map((tool) => html`<li key=${tool.name} data-row><a href=${path('servers', tool.name)} aria-current=${tool.name === chosen ? 'true' : undefined}><span class="who"><code title=${tool.name}>${line(tool.name.slice(tool.name.startsWith(`${server}__`) ? cut : 0), 80)}</code></span><span class="muted">${server ? '' : tool.family}</span><span class="muted last">${line(tool.description.split('\n')[0], 200)}</span></a></li>`)}</ul></details>`;
}

const hasWords = (text, find) => find.toLowerCase().split(/\s+/).filter(Boolean).every((word) => text.toLowerCase().includes(word));

export function Servers({ route }) {
  const state = useStore('sources');
  const tab = route.query.get('tab') ?? '';
  const read = useRead(tools, [[...(state.sources?.values() ?? [])].map((source) => `${source.name} ${source.tools}`).join()]);
  const [find, setFind] = useState('');
  const known = useRef([]);
  if (read.value) known.current = read.value;
  const all = known.current;
  const chosen = all.find((tool) => tool.name === route.id);
  const sources = [...(state.sources?.values() ?? [])].sort(byUrgency);
  const names = [...new Set(sources.map((source) => source.name))].sort((one, other) => other.length - one.length);
  const shownSources = sources.filter((source) => hasWords(`${source.name} ${source.state} ${source.reason ?? ''} ${source.from}`, find));
  const shown = useMemo(() => all.filter((tool) => hasWords(`${tool.name} ${tool.family ?? ''} ${tool.description}`, find)), [all, find]);
  const isTools = tab === 'tools' || Boolean(route.id);
  const link = (to) => path('servers', '', { tab: to });
  return html`<div class=${`split${route.id ? ' has-detail' : ''}`}><section class="index" aria-label="Servers"><header class="bar"><h2>Servers</h2>
      <div class="tabs" role="group" aria-label="Parts"><a href=${link('')} aria-current=${isTools ? undefined : 'true'}>Servers <span class="muted">${state.loaded.has('sources') && shownSources.length}</span></a><a href=${link('tools')} aria-current=${isTools ? 'true' : undefined}>Tools <span class="muted">${read.value && shown.length}</span></a></div>
      <${Search} value=${find} set=${setFind} label=${isTools ? 'Search tools' : 'Search servers'} /></header>
    ${isTools
      ? read.error ? html`<${Failure} text=${read.error.message} again=${read.again} />` : !read.value && !all.length ? html`<${Loading} of="tools" />`
        : !shown.length ? html`<${Empty} title="No tool matches." />`
        : groupsOf(shown, names).map(([server, tools_], index) => html`<${ToolGroup} key=${server} server=${server} tools=${tools_} chosen=${route.id} isOpen=${Boolean(find) || index === 0 || tools_.some((tool) => tool.name === route.id)} />`)
      : state.failures.has('sources') ? html`<${Failure} text=${state.failures.get('sources')} again=${() => load('sources')} />`
      : !state.loaded.has('sources') ? html`<${Loading} of="servers" />`
      : !sources.length ? html`<${Empty} title="No child server is configured."><code>svc mcp import claude-code</code> takes those of a client; <code>svc mcp add</code> names one. svc's own tools stand under <a href=${link('tools')}>Tools</a>.<//>`
      : !shownSources.length ? html`<${Empty} title="No server matches." />`
      : html`<ul class="sources">${shownSources.map((source) => html`<${Source} key=${`${source.project ?? ''} ${source.name} ${source.from}`} source=${source} isChosen=${source.name === route.query.get('server') && source.state !== 'hidden'} />`)}</ul>`}</section>
    ${chosen ? html`<${Tool} key=${chosen.name} tool=${chosen} />` : route.id && read.value ? html`<section class="detail" aria-label="Tool"><${Empty} title="There is no such tool." /></section>` : ''}</div>`;
}
