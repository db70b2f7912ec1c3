// Servers: child MCP servers with their next action; and all tools, to look up and to call.
import { html, useMemo, useState } from '../lib.js';
import { callTool, get, post, query } from '../api.js';
import { go, path } from '../router.js';
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
  return html`<article class="detail" aria-label="Tool"><header class="bar"><a class="back" href=${path('servers')}>Servers</a><h2>${line(tool.name, 100)}</h2></header>
    <p class="prose"><${Text} value=${tool.description} cut=${1500} /></p>
    <div class="form">${names.map((name) => html`<${Field} key=${name} name=${name} schema=${resolve(root.properties[name], root)} isRequired=${required.includes(name)} text=${fields[name] ?? ''} set=${(text) => setFields({ ...fields, [name]: text })} />`)}
      <p><${Action} class="primary" ask=${isReading ? undefined : 'This may change something. Call it?'} run=${call}>Call<//></p></div>
    ${result !== null && html`<h3>Result</h3><pre class="data" tabindex="0"><${Text} value=${JSON.stringify(result, null, 2)} cut=${20000} /></pre>`}</article>`;
}

/** What a person can do from here, by state; what takes a terminal is said by the server's next action. */
const ACTIONS = { disabled: [['Enable', 'enable']], hidden: [], misconfigured: [], pending_approval: [], needs_auth: [['Disable', 'disable']], failed: [['Start again', 'reconnect'], ['Disable', 'disable']], backing_off: [['Start now', 'reconnect'], ['Disable', 'disable']] };
const WORKING = [['Reconnect', 'reconnect'], ['Disable', 'disable']];

const at = (source, act = '') => query(`/v1/sources/${encodeURIComponent(source.name)}${act && `/${act}`}`, { project: source.project });

function Errors({ source }) {
  const [log, setLog] = useState(null);
  const read = () => get(at(source, 'log')).then((reply) => setLog(reply.log));
  return html`<p><${Action} run=${read}>${log === null ? 'Show its error output' : 'Read again'}<//></p>
    ${log !== null && (log ? html`<pre class="data" tabindex="0"><${Text} value=${log} cut=${20000} /></pre>` : html`<p class="muted">It wrote nothing there.</p>`)}`;
}

/** A login in the person's browser; that it is over shows as a change of the server's state. */
function Login({ source }) {
  const [page, setPage] = useState('');
  return html`<p class="answers"><${Action} class="primary" run=${() => post(at(source, 'login')).then((reply) => setPage(reply.authorization_url))}>Log in<//>
    ${/^https?:/.test(page) && html`<a href=${page} target="_blank" rel="noopener noreferrer">${line(page, 2000)}</a>`}</p>`;
}

/** Definitions that are not those that were approved: shown before they can be. */
function Changes({ source }) {
  const [waiting, setWaiting] = useState(null);
  const read = () => get(at(source, 'changes')).then(setWaiting);
  const approve = () => post(at(source, 'approve'), { digest: waiting.digest }).then(() => load('sources'));
  return html`<p><${State} of="changed" /> ${source.changed === 1 ? 'One definition is' : `${source.changed} definitions are`} not as approved. <${Action} run=${read}>${waiting ? 'Look again' : 'Look'}<//></p>
    ${waiting && html`<ul>${waiting.changes.map((each) => html`<li key=${`${each.kind} ${each.name}`}><b>${each.kind} <bdi>${line(each.name, 100)}</bdi></b> (${each.before ? 'changed' : 'new'})
      <pre class="data" tabindex="0"><${Text} value=${JSON.stringify(each.after, null, 2)} cut=${4000} /></pre></li>`)}</ul>
    <p class="answers"><${Action} class="primary" ask="Approve these definitions?" run=${approve}>Approve<//></p>`}`;
}

function Source({ source, isChosen }) {
  const act = (name) => post(at(source, name)).then(() => load('sources'));
  const counts = [['tools', source.tools], ['resources', source.resources], ['prompts', source.prompts]].filter(([, count]) => count);
  return html`<li data-row class=${isChosen ? 'chosen' : ''}><details open=${isChosen}><summary><span class="strong"><bdi>${line(source.name, 60)}</bdi></span> <${State} of=${source.state} />
      <span class="muted">${counts.map(([name, count]) => `${count} ${count === 1 ? name.slice(0, -1) : name}`).join(', ')}</span> <${Time} at=${source.since} /></summary>
    ${source.reason && html`<p><${Text} value=${source.reason} cut=${600} /></p>`}
    ${source.next_action && html`<p><span class="muted">Next:</span> <${Text} value=${source.next_action} cut=${300} /></p>`}
    ${source.changed > 0 && html`<${Changes} source=${source} />`}
    ${source.state === 'needs_auth' && html`<${Login} source=${source} />`}
    <p class="answers">${(ACTIONS[source.state] ?? WORKING).map(([label, name]) => html`<${Action} key=${name} ask=${name === 'disable' ? 'Turn it off for good?' : undefined} run=${() => act(name)}>${label}<//>`)}</p>
    <${Facts} of=${[['Named in', source.from && line(source.from, 200)], ['Hidden by', source.hidden_by && line(source.hidden_by, 200)], ['Project', source.project && html`<code>${line(source.project, 200)}</code>`], ['Transport', source.transport], ['Sharing', source.sharing], ['Process', source.pid], ['Attempt', source.attempt], ['Next start', source.next_at && html`<${Time} at=${source.next_at} />`],
      ['Instances', source.instances?.length ? source.instances.map((each) => `${line(each.key, 80)} ${each.state}`).join(', ') : ''], ['Warnings', source.warnings?.map((each) => line(each, 300)).join(' ')]]} />
    ${!['hidden', 'pending_approval'].includes(source.state) && html`<${Errors} source=${source} />`}</details></li>`;
}

function Sources({ sources, chosen }) {
  return html`<ul class="sources">${[...sources].map(([key, source]) => html`<${Source} key=${key} source=${source} isChosen=${source.name === chosen && source.state !== 'hidden'} />`)}</ul>`;
}

export function Servers({ route }) {
  const state = useStore('sources');
  const read = useRead(tools, []);
  const [find, setFind] = useState('');
  const chosen = read.value?.find((tool) => tool.name === route.id);
  const shown = useMemo(() => {
    const words = find.toLowerCase().split(/\s+/).filter(Boolean);
    return (read.value ?? []).filter((tool) => words.every((word) => `${tool.name} ${tool.family ?? ''} ${tool.description}`.toLowerCase().includes(word)));
  }, [read.value, find]);
  return html`<div class=${`split${route.id ? ' has-detail' : ''}`}><section class="index" aria-label="Servers"><header class="bar"><h2>Servers</h2></header>
    ${!state.loaded.has('sources') ? html`<${Loading} of="servers" />`
      : !state.sources ? html`<${Empty} title="This daemon has no child servers.">All tools below are its own.<//>`
      : !state.sources.size ? html`<${Empty} title="No child server is configured."><code>svc mcp import claude-code</code> takes those of a client; <code>svc mcp add</code> names one.<//>`
      : html`<${Sources} sources=${state.sources} chosen=${route.query.get('server')} />`}
    <header class="bar"><h2>Tools</h2><${Search} value=${find} set=${setFind} label="Search tools" /><span class="muted">${shown.length}</span></header>
    ${read.error ? html`<${Failure} text=${read.error.message} again=${read.again} />` : !read.value ? html`<${Loading} of="tools" />`
      : !shown.length ? html`<${Empty} title="No tool is like that." />`
      : html`<ul class="threads">${shown.map((tool) => html`<li key=${tool.name} data-row><a href=${path('servers', tool.name)} aria-current=${tool.name === route.id ? 'true' : undefined} onClick=${() => go(path('servers', tool.name))}><span class="who"><code>${line(tool.name, 80)}</code></span><span class="muted">${tool.family}</span><span class="muted last">${line(tool.description.split('\n')[0], 200)}</span></a></li>`)}</ul>`}</section>
    ${chosen ? html`<${Tool} key=${chosen.name} tool=${chosen} />` : route.id && read.value ? html`<section class="detail" aria-label="Tool"><${Empty} title="There is no such tool." /></section>` : ''}</div>`;
}
