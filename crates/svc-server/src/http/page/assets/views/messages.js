// Messages: threads, what became of each message, and a line to write one as the person.
import { html, useEffect, useMemo, useRef, useState } from '../lib.js';
import { get, post } from '../api.js';
import { UNREAD, nameOf } from '../attention.js';
import { go, path } from '../router.js';
import { load, useStore } from '../store.js';
import { Text, line } from '../text.js';
import { Time, exact } from '../time.js';
import { Choice, Delivery, Empty, Facts, Failure, Loading, Search, useRead, useSettled } from '../ui.js';

const threadOf = (message) => [message.from_peer, message.to_peer].sort().join(' ');

function Compose({ peers, to, setTo, reply, setReply, state }) {
  const [text, setText] = useState('');
  const [isQuestion, setQuestion] = useState(false);
  const [result, setResult] = useState(null);
  const field = useRef();
  useEffect(() => {
    if (reply) field.current?.focus();
  }, [reply?.id]);
  const send = async (event) => {
    event.preventDefault();
    if (!to || !text.trim()) {
      setResult({ error: to ? 'Write a text.' : 'Choose who gets it.' });
      return;
    }
    const answers = reply && { type: 'response', correlation_id: reply.id };
    try {
      const message = await post(`/v1/peers/${encodeURIComponent(to)}/messages`, { text, type: isQuestion ? 'query' : 'notification', ...answers });
      setText('');
      setReply(null);
      setResult({ message });
      field.current?.focus();
    } catch (error) {
      setResult({ error: error.message });
    }
  };
  const known = peers.some((peer) => peer.peer_id === to) || !to ? peers : [{ peer_id: to, display_name: nameOf(state, to) }, ...peers];
  return html`<form class="compose" onSubmit=${send} aria-label="Write as yourself">
    ${reply && html`<p class="quoted"><span class="muted">Reply to</span> <bdi>${line(reply.text, 120)}</bdi> <button type="button" class="quiet" onClick=${() => setReply(null)}>Cancel</button></p>`}
    <textarea ref=${field} rows="2" value=${text} aria-label="Text" placeholder=${reply ? 'Your reply' : 'Write as yourself'}
      onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && send(event)}></textarea>
    <div class="bar"><${Choice} label="To" value=${to} set=${setTo} options=${[['', 'choose …'], ...known.map((peer) => [peer.peer_id, line(peer.display_name, 40)])]} />
      ${!reply && html`<label class="switch"><input type="checkbox" checked=${isQuestion} onChange=${(event) => setQuestion(event.target.checked)} /> asks for an answer</label>`}
      <button class="primary" title="Ctrl+Enter">${reply ? 'Reply' : 'Send'}</button>
      <span role="status" class=${result?.error ? 'bad-text' : 'muted'}>${result?.error ? line(result.error, 300) : result?.message ? 'Sent.' : ''}</span></div></form>`;
}

/** An answer is read when the person has seen it. A question is not: its answer acknowledges it; nor is a request for permission. */
const isReadBySight = (message) => message.to_peer === 'operator' && message.type !== 'query' && UNREAD.includes(message.state) && message.provenance?.sourceTool !== 'agent_request';

/** Tells the daemon once an element with such a message was on the screen. */
function useReading(element, message) {
  const isToRead = isReadBySight(message);
  useEffect(() => {
    if (!isToRead) return undefined;
    let isInView = false;
    const tell = () => {
      if (!isInView || document.hidden) return;
      isInView = false;
      post('/v1/peers/operator/messages/ack', { ids: [message.id] }).catch(() => {});
    };
    const watch = new IntersectionObserver(([entry]) => {
      isInView = entry.isIntersecting;
      tell();
    }, { threshold: 0.5 });
    watch.observe(element.current.querySelector('header'));
    document.addEventListener('visibilitychange', tell);
    return () => {
      watch.disconnect();
      document.removeEventListener('visibilitychange', tell);
    };
  }, [message.id, isToRead]);
}

const TYPES = { query: 'asks', response: 'answers', notification: 'tells', broadcast: 'tells all' };
/** What its sender does by a message: “you tell”, “claude tells”. */
function verb(message) {
  const verb = TYPES[message.type] ?? message.type;
  return message.from_peer === 'operator' ? verb.replace(/s( |$)/, '$1') : verb;
}

function Message({ message, state, isOpen, toggle, reply }) {
  const element = useRef();
  useReading(element, message);
  const detail = useRead(() => (isOpen ? get(`/v1/messages/${encodeURIComponent(message.id)}`) : Promise.resolve(null)), [isOpen, message.state]);
  useEffect(() => {
    if (!isOpen) return;
    const box = element.current.parentElement;
    box.scrollTop = element.current.offsetTop - box.offsetTop - 40;
  }, [isOpen]);
  const isOurs = message.from_peer === 'operator';
  return html`<li class=${`message${isOurs ? ' ours' : ''}`} data-row ref=${element}><header><span><span class="strong"><bdi>${line(nameOf(state, message.from_peer), 60)}</bdi></span>${' '}
      <span class="muted">${verb(message)} <bdi>${line(nameOf(state, message.to_peer), 60)}</bdi></span></span>
      <button class="quiet" aria-expanded=${isOpen} title="Each step of the delivery" onClick=${toggle}><${Delivery} of=${message.state} /></button>${!isOurs && message.from_peer && html`<button class="quiet" onClick=${() => reply(message)}>Reply</button>`}<${Time} at=${message.timestamp} /></header>
    <div class="body"><${Text} value=${message.text} cut=${1200} /></div>
    ${isOpen && html`<ol class="states">${(detail.value?.states ?? []).map((each) => html`<li><${Delivery} of=${each.state} /> <time datetime=${each.at} title=${exact(each.at)}>${exact(each.at)}</time>${each.via && html` <span class="muted">by ${line(each.via, 20)}</span>`}${each.reason && html` <span class="bad-text">${line(each.reason, 200)}</span>`}</li>`)}</ol>
      <${Facts} of=${[['Id', html`<code>${message.id}</code>`], ['Belongs to', message.correlation_id && html`<code>${line(message.correlation_id, 100)}</code>`]]} />`}</li>`;
}

export function Messages({ route }) {
  const state = useStore('messages', 'peers');
  const peer = route.query.get('peer') ?? '';
  const open = route.query.get('message') ?? '';
  const thread = route.query.get('thread') ?? '';
  const [find, setFind] = useState('');
  const [to, setTo] = useState('');
  const [reply, setReply] = useState(null);
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
      if (UNREAD.includes(message.state)) row.waiting += 1;
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
  const seen = shown.slice(-400);
  // Who is written to: the other end of the thread, or the peer whose messages are shown.
  const other = shownThread ? shownThread.split(' ').find((id) => id !== 'operator') : peer !== 'operator' ? peer : '';
  useEffect(() => {
    setTo(other);
    setReply(null);
  }, [other]);
  const answer = (message) => {
    setTo(message.from_peer);
    setReply(message);
  };
  useEffect(() => {
    // The list alone scrolls: on a small screen the page stays where it is.
    if (!open && end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [last, shownThread]);
  const link = (changes) => path('messages', '', { peer, thread: shownThread, ...changes });
  const failure = state.failures.get('messages');
  return html`<div class=${`split${shownThread ? ' has-detail' : ''}`}><section class="index" aria-label="Threads"><header class="bar"><h2>Messages</h2>
      <${Choice} label="Of" value=${peer} set=${(value) => go(path('messages', '', { peer: value }))} options=${[['', 'everybody'], ['operator', 'you'], ...peers.map((each) => [each.peer_id, line(each.display_name, 40)])]} /></header>
    ${failure ? html`<${Failure} text=${failure} again=${() => load('messages')} />`
      : !state.loaded.has('messages') ? html`<${Loading} of="messages" />`
      : !threads.length ? html`<${Empty} title="No messages yet.">Agents write to each other with the tool <code>peer_send</code>; you write below, or with <code>svc tell</code> and <code>svc ask</code>.<//>`
      : html`<ul class="threads">${threads.slice(0, 300).map((row) => html`<li key=${row.key} data-row><a href=${link({ thread: row.key })} aria-current=${row.key === shownThread ? 'true' : undefined}>
          <span class="who">${row.key.split(' ').map((id) => html`<bdi>${line(nameOf(state, id), 40)}</bdi>`).reduce((one, other) => [one, ' ↔ ', other])}</span>
          <${Time} at=${row.last.timestamp} /><span class="muted last"><bdi>${line(row.last.text, 100)}</bdi></span>
          <span class="counts">${row.bad > 0 && html`<span class="bad-text">${row.bad} not delivered</span>`}${row.waiting > 0 && html`<span>${row.waiting} unread</span>`}</span></a></li>`)}</ul>`}</section>
  <section class="detail thread" aria-label="Thread"><header class="bar">${shownThread && html`<a class="back" href=${path('messages', '', { peer })}>All</a>`}
      <${Search} value=${find} set=${setFind} label="Search messages" /><span class="muted">${shown.length}</span></header>
    <ul class="messages" ref=${end} tabindex="0" aria-label="Messages">${seen.map((message) => html`<${Message} key=${message.id} message=${message} state=${state} isOpen=${message.id === open} reply=${answer}
      toggle=${() => go(link({ message: message.id === open ? '' : message.id }), true)} />`)}</ul>
    <${Compose} peers=${peers} to=${to} setTo=${setTo} reply=${reply} setReply=${setReply} state=${state} /></section></div>`;
}
