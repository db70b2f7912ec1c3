// Small parts that all views share.
import { html, useEffect, useRef, useState } from './lib.js';
import { post } from './api.js';
import { load } from './store.js';
import { CallInput } from './call.js';
import { Text, line } from './text.js';

const MOODS = {
  good: ['online', 'running', 'done', 'confirmed', 'acked', 'callable', 'live', 'gold', 'ready', 'connected', 'ok'],
  busy: ['busy', 'active', 'offered', 'injected', 'starting', 'stopping', 'connecting', 'queued', 'accepted', 'silver'],
  wait: ['requires_action', 'waiting', 'pending', 'limited', 'needs_auth', 'pending_approval', 'changed', 'backing_off', 'warning', 'request', 'question', 'away', 'bronze', 'cancel requested'],
  bad: ['failed', 'failed_task', 'expired_task', 'failed_server', 'error', 'lost', 'expired', 'undeliverable', 'refused', 'falsified', 'misconfigured', 'unreachable', 'binary-missing', 'signed-out'],
};
const MOOD_OF = new Map(Object.entries(MOODS).flatMap(([mood, words]) => words.map((word) => [word, mood])));
/** Words for people, where a state has another on the wire. */
const WORDS = { requires_action: 'waiting', pending_approval: 'new file', needs_auth: 'needs login', request: 'permission', 'binary-missing': 'not installed', failed_task: 'failed', expired_task: 'expired', failed_server: 'failed' };
/** The same for the delivery of a message. */
const DELIVERY = { accepted: 'waiting', queued: 'waiting', offered: 'handed over', injected: 'handed over', acked: 'read', undeliverable: 'not delivered' };

/** A state: a word with a dot, never a colour alone. */
export function State({ of, words = WORDS }) {
  const word = String(of ?? 'unknown');
  return html`<span class=${`state ${MOOD_OF.get(word) ?? 'calm'}`}>${line((words[word] ?? word).replaceAll('_', ' '), 40)}</span>`;
}

/** What became of a message. */
export function Delivery({ of }) {
  return html`<${State} of=${of} words=${DELIVERY} />`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="strong">${title}</p>${children && html`<p>${children}</p>`}</div>`;
}

export function Loading({ of }) {
  return html`<p class="loading" role="status">Loading ${of} …</p>`;
}

export function Failure({ text, again }) {
  return html`<div class="empty bad" role="alert"><p class="strong">This did not work.</p><p>${line(text, 500)}</p>
    ${again && html`<p><button onClick=${again}>Try again</button></p>`}</div>`;
}

/** A button that works, and says how it went. */
export function Action({ run, children, class: name, ask, disabled, title }) {
  const [phase, setPhase] = useState('');
  const [error, setError] = useState('');
  const act = async () => {
    if (ask && phase !== 'asked') {
      setPhase('asked');
      return;
    }
    setPhase('busy');
    setError('');
    try {
      await run();
      setPhase('');
    } catch (failure) {
      setError(failure.message);
      setPhase('');
    }
  };
  if (phase === 'asked') {
    return html`<span class="asking" role="group" aria-label=${ask}>${ask} <button class="danger" onClick=${act}>Yes</button>
      <button onClick=${() => setPhase('')}>No</button></span>`;
  }
  return html`<button class=${name} onClick=${act} title=${title} disabled=${disabled || phase === 'busy'}>${children}</button>
    ${error && html`<span class="bad-text" role="alert">${line(error, 300)}</span>`}`;
}

/** What an agent asks, with what may be answered. */
export function Answers({ request }) {
  const [text, setText] = useState('');
  const answer = (body) => post(`/v1/requests/${encodeURIComponent(request.request_id)}/answer`, body).finally(() => load('requests'));
  if (!request.options?.length && !request.agent_id) return html`<p class="muted">Answer it at its terminal.</p>`;
  if (!request.options?.length) {
    return html`<div class="answers"><input value=${text} aria-label="Answer" onInput=${(event) => setText(event.target.value)} /><${Action} class="primary" disabled=${!text.trim()} run=${() => answer({ text })}>Answer<//></div>`;
  }
  return html`<div class="answers">${request.options.map((option) => html`<${Action} key=${option.option_id} ask=${isForGood(option) ? `${line(option.name, 60)}? This holds from now on.` : undefined}
    class=${option.kind === 'allow_once' ? 'primary' : ''} run=${() => answer({ option_id: option.option_id, confirm: isForGood(option) || undefined })}>${line(option.name, 60)}<//>`)}</div>`;
}

const isForGood = (option) => /always/.test(option.kind ?? '');

/** What an agent wants to do: the call itself, and beside it what the agent calls it. */
export function Asked({ request }) {
  const { tool, title, kind } = request;
  if (!tool) return html`<${Text} value=${title} cut=${300} />`;
  const name = tool.name ?? 'a tool';
  return html`<p><span class="strong"><bdi>${line(name, 60)}</bdi></span>${kind === 'permission' && title && title !== name && html` <span class="muted"><bdi>${line(title, 200)}</bdi></span>`}</p>
    <${CallInput} value=${tool.input} />`;
}

export function Search({ value, set, label = 'Search' }) {
  return html`<input type="search" data-search value=${value} placeholder=${`${label}  /`} aria-label=${label}
    onInput=${(event) => set(event.target.value)} spellcheck=${false} />`;
}

export function Choice({ label, value, set, options }) {
  return html`<label class="choice"><span>${label}</span><select value=${value} onChange=${(event) => set(event.target.value)}>
    ${options.map((option) => {
      const [key, text] = Array.isArray(option) ? option : [option, option || 'all'];
      return html`<option value=${key} selected=${key === value}>${text}</option>`;
    })}</select></label>`;
}

/** A dialog over the page; closes by Esc, by its button, or by a click beside it. */
export function Dialog({ title, close, children }) {
  const box = useRef();
  useEffect(() => {
    box.current.showModal();
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${close}
    onClick=${(event) => event.target === box.current && box.current.close()}>
    <div class="dialog"><header><h2>${title}</h2><button class="quiet" onClick=${() => box.current.close()}>Close</button></header>
    ${children}</div></dialog>`;
}

/** Name and value pairs in one line. */
export function FactLine({ of }) {
  return html`<dl class="factline">${of.filter(([, value]) => value !== undefined && value !== null && value !== '')
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Name and value pairs. */
export function Facts({ of }) {
  return html`<dl class="facts">${of.filter(([, value]) => value !== undefined && value !== null && value !== '')
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function bytes(number) {
  if (!(number >= 1024)) return `${number ?? 0} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let value = number / 1024;
  let unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** Reads something once a view needs it, and again when `keys` change. */
export function useRead(read, keys) {
  const [result, set] = useState({ isLoading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    set((known) => ({ ...known, isLoading: true }));
    read().then(
      (value) => isCurrent && set({ value }),
      (error) => isCurrent && set({ error }),
    );
    return () => {
      isCurrent = false;
    };
  }, [...keys, turn]);
  return { ...result, again: () => setTurn((n) => n + 1) };
}

/** A value that follows another after a pause: for what is typed. */
export function useSettled(value, ms = 250) {
  const [settled, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
