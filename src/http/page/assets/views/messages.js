// Messages: threads between peers, what became of each message, and a line to write one as the operator.
import { html, useEffect, useMemo, useRef, useState } from '../lib.js';
import { get, post } from '../api.js';
import { nameOf } from '../attention.js';
import { go, path } from '../router.js';
import { load, useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time, exact } from '../time.js';
import { Choice, Empty, Facts, Failure, Loading, Search, State, useRead, useSettled } from '../ui.js';

const threadOf = (message) => [message.from_peer, message.to_peer].sort().join(' ');

function Compose({ peers, to, setTo }) {
  const [text, setText] = useState('');
  const [kind, setKind] = useState('notification');
  const [result, setResult] = useState(null);
  const field = useRef();
  const send = async (event) => {
    event.preventDefault();
    if (!to || !text.trim()) {
      setResult({ error: to ? 'Write a text.' : 'Choose a peer.' });
      return;
    }
    try {
      const message = await post(`/v1/peers/${encodeURIComponent(to)}/messages`, { text, type: kind });
      setText('');
      setResult({ message });
      field.current?.focus();
    } catch (error) {
      setResult({ error: error.message });
    }
  };
  return html`<form class="compose" onSubmit=${send} aria-label="Write as the operator">
    <${Choice} label="To" value=${to} set=${setTo} options=${[['', 'choose …'], ...peers.map((peer) => [peer.peer_id, line(peer.display_name, 40)])]} />
    <${Choice} label="Type" value=${kind} set=${setKind} options=${['notification', 'query']} />
    <textarea ref=${field} rows="2" value=${text} aria-label="Text" placeholder="Write as the operator"
      onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && send(event)}></textarea>
    <button class="primary" title="Ctrl+Enter">Send</button>
    <p role="status" class=${result?.error ? 'bad-text' : 'muted'}>${result?.error ? line(result.error, 300) : result?.message ? 'Sent.' : ''}</p></form>`;
}

function Message({ message, state, isOpen, toggle }) {
  const element = useRef();
  const detail = useRead(() => (isOpen ? get(`/v1/messages/${encodeURIComponent(message.id)}`) : Promise.resolve(null)), [isOpen, message.state]);
  useEffect(() => {
    if (!isOpen) return;
    const box = element.current.parentElement;
    box.scrollTop = element.current.offsetTop - box.offsetTop - 40;
  }, [isOpen]);
  const isOurs = message.from_peer === 'operator';
  return html`<li class=${`message${isOurs ? ' ours' : ''}`} data-row ref=${element}><header><span class="strong"><bdi>${line(nameOf(state, message.from_peer), 60)}</bdi></span>
      <span class="muted">to <bdi>${line(nameOf(state, message.to_peer), 60)}</bdi> · ${message.type}</span>
      <button class="quiet" aria-expanded=${isOpen} onClick=${toggle}><${State} of=${message.state} /></button><${Time} at=${message.timestamp} /></header>
    <div class="body"><${Text} value=${message.text} cut=${1200} /></div>
    ${isOpen && html`<ol class="states">${(detail.value?.states ?? []).map((each) => html`<li><${State} of=${each.state} /> <time datetime=${each.at} title=${exact(each.at)}>${exact(each.at)}</time>${each.reason && html` <span class="bad-text">${line(each.reason, 200)}</span>`}</li>`)}</ol>
      <${Facts} of=${[['Id', html`<code>${message.id}</code>`], ['Correlation', message.correlation_id && html`<code>${line(message.correlation_id, 100)}</code>`]]} />`}</li>`;
}

export function Messages({ route }) {
  const state = useStore('messages', 'peers');
  const peer = route.query.get('peer') ?? '';
  const open = route.query.get('message') ?? '';
  const thread = route.query.get('thread') ?? '';
  const [find, setFind] = useState('');
  const [to, setTo] = useState(peer && peer !== 'operator' ? peer : '');
  const wanted = useSettled(find, 150).toLowerCase();
  const end = useRef();
  const peers = [...state.peers.values()].filter((each) => each.peer_id !== 'operator').sort((one, other) => one.display_name.localeCompare(other.display_name));
  const all = useMemo(() => [...state.messages.values()].sort((one, other) => one.timestamp.localeCompare(other.timestamp) || one.id.localeCompare(other.id)), [[...state.messages.values()]]);
  const threads = useMemo(() => {
    const known = new Map();
    for (const message of all) {
      if (peer && message.from_peer !== peer && message.to_peer !== peer) continue;
      const key = threadOf(message);
      const row = known.get(key) ?? { key, count: 0, waiting: 0, bad: 0 };
      row.count += 1;
      row.last = message;
      if (['accepted', 'queued', 'offered'].includes(message.state)) row.waiting += 1;
      if (['undeliverable', 'refused', 'expired'].includes(message.state)) row.bad += 1;
      known.set(key, row);
    }
    return [...known.values()].sort((one, other) => other.last.timestamp.localeCompare(one.last.timestamp));
  }, [all, peer]);
  const shownThread = thread || (open && state.messages.has(open) ? threadOf(state.messages.get(open)) : '');
  const shown = all.filter((message) => (!peer || message.from_peer === peer || message.to_peer === peer)
    && (!shownThread || threadOf(message) === shownThread)
    && (!wanted || `${message.text} ${nameOf(state, message.from_peer)} ${nameOf(state, message.to_peer)}`.toLowerCase().includes(wanted)));
  const last = shown[shown.length - 1]?.id;
  useEffect(() => {
    // The list alone scrolls: on a small screen the page stays where it is.
    if (!open && end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [last, shownThread]);
  const link = (changes) => path('messages', '', { peer, thread: shownThread, ...changes });
  const failure = state.failures.get('messages');
  return html`<div class=${`split${shownThread ? ' has-detail' : ''}`}><section class="index" aria-label="Threads"><header class="bar"><h2>Messages</h2>
      <${Choice} label="Peer" value=${peer} set=${(value) => go(path('messages', '', { peer: value }))} options=${[['', 'everybody'], ['operator', 'operator'], ...peers.map((each) => [each.peer_id, line(each.display_name, 40)])]} /></header>
    ${failure ? html`<${Failure} text=${failure} again=${() => load('messages')} />`
      : !state.loaded.has('messages') ? html`<${Loading} of="messages" />`
      : !threads.length ? html`<${Empty} title="No messages yet.">Peers write with the tool <code>peer_send</code>; you write below, or with <code>svc message send</code>.<//>`
      : html`<ul class="threads">${threads.slice(0, 300).map((row) => html`<li key=${row.key} data-row><a href=${link({ thread: row.key })} aria-current=${row.key === shownThread ? 'true' : undefined}>
          <span class="who">${row.key.split(' ').map((id) => html`<bdi>${line(nameOf(state, id), 40)}</bdi>`).reduce((one, other) => [one, ' ↔ ', other])}</span>
          <${Time} at=${row.last.timestamp} /><span class="muted last"><bdi>${line(row.last.text, 100)}</bdi></span>
          <span class="counts">${row.bad > 0 && html`<span class="bad-text">${row.bad} not delivered</span>`}${row.waiting > 0 && html`<span>${row.waiting} unread</span>`}</span></a></li>`)}</ul>`}</section>
  <section class="detail thread" aria-label="Thread"><header class="bar">${shownThread && html`<a class="back" href=${path('messages', '', { peer })}>All</a>`}
      <${Search} value=${find} set=${setFind} label="Search messages" /><span class="muted">${shown.length}</span></header>
    <ul class="messages" ref=${end} tabindex="0" aria-label="Messages">${shown.slice(-400).map((message) => html`<${Message} key=${message.id} message=${message} state=${state} isOpen=${message.id === open}
      toggle=${() => go(link({ message: message.id === open ? '' : message.id }), true)} />`)}</ul>
    <${Compose} peers=${peers} to=${to} setTo=${setTo} /></section></div>`;
}
