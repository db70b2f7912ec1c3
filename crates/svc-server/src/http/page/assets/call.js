// Calls of tools: what one does in a line, and its command, change or arguments as they are.
import { html } from './lib.js';
import { Text, line } from './text.js';

/** Characters of a command or a change that are shown until somebody asks for all of it. */
const CUT = 4000;

/** The arguments of a call: an object, or the JSON text of one. */
export function argumentsOf(input) {
  if (typeof input !== 'string') return input;
  try {
    return JSON.parse(input);
  } catch {
    return input;
  }
}

const isDiff = (text) => typeof text === 'string' && /^(diff --git|--- |@@ )/m.test(text) && /^[+-]/m.test(text);
const joined = (command) => (Array.isArray(command) ? command.join(' ') : command);
const text = (value) => (typeof value === 'string' && value ? value : null);

/** The command that a call runs, if it runs one. */
function commandOf(input) {
  return text(joined(input?.command)) ?? text(joined(input?.cmd));
}

const marked = (mark, lines) => String(lines).split('\n').map((each) => `${mark}${each}`);

/** The change that a call makes, line by line, if it makes one. */
function changeOf(input) {
  if (!input || typeof input !== 'object') return isDiff(input) ? input : null;
  const edits = Array.isArray(input.edits) ? input.edits : [input];
  const pairs = edits.map((edit) => [edit.old_string ?? edit.oldText ?? edit.old_text, edit.new_string ?? edit.newText ?? edit.new_text]);
  if (pairs.length && pairs.every(([before, after]) => typeof before === 'string' && typeof after === 'string')) {
    return pairs.flatMap(([before, after]) => [...(before ? marked('-', before) : []), ...marked('+', after)]).join('\n');
  }
  const whole = [input.diff, input.patch, input.unified_diff].find(isDiff);
  if (whole) return whole;
  const path = input.file_path ?? input.path;
  return path && typeof input.content === 'string' ? marked('+', input.content).join('\n') : null;
}

const pathOf = (input) => text(input?.file_path) ?? text(input?.path) ?? text(input?.notebook_path);

/** What a call does, in a line. */
export function callLine(name, toolInput, summary) {
  const input = argumentsOf(toolInput);
  const what = commandOf(input) ?? pathOf(input) ?? text(input?.pattern) ?? text(input?.url) ?? text(input?.query) ?? text(summary)
    ?? (input && typeof input === 'object' ? JSON.stringify(input) : text(input));
  return [name, what && what !== '{}' ? what : ''].filter(Boolean).join(' ');
}

/** A change of a text. */
export function Diff({ value }) {
  const cut = value.length > CUT * 4 ? value.slice(0, CUT * 4) : value;
  return html`<pre class="diff" tabindex="0">${cut.split('\n').map((each) => html`<span class=${each.startsWith('+') && !each.startsWith('+++') ? 'plus' : each.startsWith('-') && !each.startsWith('---') ? 'minus' : each.startsWith('@@') ? 'at' : ''}><${Text} value=${each} />${'\n'}</span>`)}${cut !== value && html`<span class="muted">… ${value.length.toLocaleString('en')} characters</span>`}</pre>`;
}

/** A text, as a change if it is one. */
export function Result({ value }) {
  return isDiff(value) ? html`<${Diff} value=${value} />` : html`<pre tabindex="0"><${Text} value=${value} cut=${CUT} /></pre>`;
}

/** What a call does: the command as it will run, the change that it makes, or its arguments. */
export function CallInput({ value }) {
  const input = argumentsOf(value);
  if (input === undefined || input === null || (typeof input === 'object' && !Object.keys(input).length)) return '';
  const command = commandOf(input);
  const change = changeOf(input);
  const path = pathOf(input);
  const rest = typeof input === 'object' && !Array.isArray(input)
    ? Object.entries(input).filter(([key]) => !['command', 'cmd', 'description', 'file_path', 'path', 'notebook_path', 'old_string', 'new_string', 'oldText', 'newText', 'old_text', 'new_text', 'edits', 'diff', 'patch', 'unified_diff', ...(change ? ['content'] : [])].includes(key)) : [];
  if (command || change || path) {
    return html`${path && html`<p><code><bdi>${line(path, 400)}</bdi></code></p>`}${command && html`<pre class="command" tabindex="0"><${Text} value=${command} cut=${CUT} /></pre>`}${change && html`<${Diff} value=${change} />`}
      ${rest.length > 0 && html`<p class="muted">${rest.map(([key, value_]) => `${line(key, 40)}: ${line(typeof value_ === 'string' ? value_ : JSON.stringify(value_), 200)}`).join(' · ')}</p>`}`;
  }
  return html`<pre tabindex="0"><${Text} value=${typeof input === 'string' ? input : JSON.stringify(input, null, 2)} cut=${CUT} /></pre>`;
}
