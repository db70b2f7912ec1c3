// Tasks: a list, and the output of the one that is chosen, which follows until the person scrolls away.
import { html, useEffect, useMemo, useRef, useState } from '../lib.js';
import { get, post, query } from '../api.js';
import { List } from '../list.js';
import { go, path, setQuery } from '../router.js';
import { followStream, goneEvents, load, see, useStore } from '../store.js';
import { Line, Text, line } from '../text.js';
import { Time, clock, duration, useClock } from '../time.js';
import { Action, Choice, Empty, FactLine, Facts, Failure, Loading, Search, State, useRead, useSettled } from '../ui.js';

const STATES = ['', 'pending', 'active', 'done', 'failed', 'cancelled', 'expired'];
const OVER = ['done', 'failed', 'cancelled', 'expired'];
/** Lines of a task's output that are read at first, and lines that are kept. */
const TAIL = 10_000;
const KEPT = 50_000;

const titleOf = (task) => task.title ?? task.prompt ?? task.task_id;

function took(task) {
  if (!task.closed_at && task.status !== 'active') return '';
  return duration((task.closed_at ? Date.parse(task.closed_at) : Date.now()) - Date.parse(task.created_at));
}

function ending(task) {
  if (task.exit_code !== undefined && task.exit_code !== null) return `exit ${task.exit_code}`;
  return task.signal ? `signal ${task.signal}` : '';
}

/** Reads the end of a task's stream, and follows it from there. */
function useOutput(task) {
  const [, show] = useState(0);
  const [turn, setTurn] = useState(0);
  const output = useRef({ lines: [], last: 0, first: 0, isLoading: true, error: null, timer: null });
  const id = task.task_id;
  const take = (event) => {
    const known = output.current;
    if (event.seq <= known.last) return;
    if (known.last && event.seq > known.last + 1) known.lines.push({ seq: `gap${event.seq}`, note: goneEvents(known.last, event.seq) });
    known.last = event.seq;
    if (event.kind === 'frame') known.lines.push({ seq: event.seq, at: event.at, text: event.data.line ?? '', isError: event.data.kind === 'stderr' });
    else if (event.kind === 'reply') known.lines.push({ seq: event.seq, at: event.at, text: `${event.data.from ?? ''}: ${event.data.body ?? ''}`, note: undefined });
    if (known.lines.length > KEPT + 5000) known.lines.splice(0, 5000);
    known.timer ??= setTimeout(() => {
      known.timer = null;
      show((n) => n + 1);
    }, 100);
  };
  useEffect(() => {
    const known = { lines: [], last: 0, first: 0, isLoading: true, error: null, timer: null };
    output.current = known;
    const waiting = [];
    let isCurrent = true;
    // What comes while the past is read waits for it.
    const leave = followStream(`task/${id}`, (event) => (known.isLoading ? waiting.push(event) : take(event)));
    const read = async () => {
      let after = Math.max(0, (task.last_id ?? 0) - TAIL);
      known.first = after;
      known.last = after;
      while (isCurrent) {
        const page = await get(query('/v1/events', { stream: `task/${id}`, after, limit: 500 }));
        page.events.forEach(take);
        if (!page.next_cursor || !page.events.length) break;
        after = page.next_cursor;
      }
    };
    read().catch((error) => {
      known.error = error;
    }).finally(() => {
      known.isLoading = false;
      waiting.forEach(take);
      if (isCurrent) show((n) => n + 1);
    });
    return () => {
      isCurrent = false;
      clearTimeout(known.timer);
      leave();
    };
  }, [id, turn]);
  return [output.current, () => setTurn((n) => n + 1)];
}

function Output({ task }) {
  const [output, again] = useOutput(task);
  const [find, setFind] = useState('');
  const [follow, setFollow] = useState(true);
  const wanted = useSettled(find, 150).toLowerCase();
  const lines = useMemo(
    () => (wanted ? output.lines.filter((each) => each.text?.toLowerCase().includes(wanted)) : output.lines),
    [wanted, output.lines, output.lines.length, output.last],
  );
  return html`<div class="bar"><${Search} value=${find} set=${setFind} label="Search the output" />
      <span class="muted">${wanted ? `${lines.length.toLocaleString('en')} of ${output.lines.length.toLocaleString('en')} lines` : `${output.lines.length.toLocaleString('en')} lines`}</span>
      ${!follow && html`<button onClick=${() => setFollow(true)}>Follow the end</button>`}</div>
    ${output.first > 1 && html`<p class="muted note">The first ${output.first.toLocaleString('en')} events are left out: <code>svc task watch ${task.task_id}</code> shows all.</p>`}
    ${output.error ? html`<${Failure} text=${output.error.message} again=${again} />`
      : output.isLoading && !output.lines.length ? html`<${Loading} of="the output" />`
      : !output.lines.length ? html`<${Empty} title="No output yet." />`
      : html`<${List} kind="log" class="output" label="Output" count=${lines.length} height=${20} follow=${follow && !wanted} onFollow=${setFollow}
        keyOf=${(index) => lines[index].seq}
        row=${(index) => {
          const each = lines[index];
          if (each.note) return html`<span class="gap">${each.note}</span>`;
          return html`<span class="at" title=${each.at}>${clock(each.at)}</span><span class=${each.isError ? 'err' : ''}>${each.isError && html`<span class="sr">stderr: </span>`}<${Line} value=${each.text} /></span>`;
        }} />`}`;
}

function Task({ id }) {
  const { tasks } = useStore('tasks');
  useClock();
  const known = tasks.get(id);
  const read = useRead(() => get(`/v1/tasks/${encodeURIComponent(id)}`), [id]);
  useEffect(() => see([id]), [id]);
  const task = known ?? read.value;
  if (!task) return read.error ? html`<${Failure} text=${read.error.message} again=${read.again} />` : html`<${Loading} of="the task" />`;
  const cancel = () => post(`/v1/tasks/${encodeURIComponent(id)}/cancel`);
  return html`<article class="detail" aria-label="Task"><header class="bar"><a class="back" href=${path('tasks')}>Tasks</a><h2><bdi>${line(titleOf(task), 160)}</bdi></h2>
      ${!OVER.includes(task.status) && html`<${Action} ask="Cancel this task?" run=${cancel}>Cancel<//>`}</header>
    <${FactLine} of=${[
      ['State', html`<${State} of=${task.status} />`],
      ['Ended with', ending(task)],
      ['Took', took(task)],
      ['Agent', task.agent && line(task.agent, 80)],
      ['From', task.from && line(task.from, 80)],
      ['Made', html`<${Time} at=${task.created_at} />`],
      ['Id', html`<code>${id}</code>`],
    ]} />
    <${Facts} of=${[
      ['Error', task.error && html`<${Text} value=${task.error} cut=${400} />`],
      ['Prompt', task.prompt && task.title && html`<${Text} value=${task.prompt} cut=${200} />`],
    ]} /><${Output} task=${task} /></article>`;
}

export function Tasks({ route }) {
  const state = useStore('tasks');
  useClock();
  const status = route.query.get('status') ?? '';
  const [find, setFind] = useState('');
  const wanted = useSettled(find, 150).toLowerCase();
  const { id } = route;
  const rows = useMemo(() => [...state.tasks.values()]
    .filter((task) => (!status || task.status === status) && (!wanted || `${titleOf(task)} ${task.agent ?? ''} ${task.from ?? ''} ${task.task_id}`.toLowerCase().includes(wanted)))
    .sort((one, other) => other.created_at.localeCompare(one.created_at) || other.task_id.localeCompare(one.task_id)),
  [status, wanted, [...state.tasks.values()]]);
  const failure = state.failures.get('tasks');
  return html`<div class=${`split${id ? ' has-detail' : ''}`}><section class="index" aria-label="Tasks"><header class="bar"><h2>Tasks</h2>
      ${!id && html`<${Search} value=${find} set=${setFind} label="Search tasks" />`}
      <${Choice} label="State" value=${status} set=${(value) => setQuery({ status: value })} options=${STATES} />
      <span class="muted">${rows.length}</span></header>
    ${failure ? html`<${Failure} text=${failure} again=${() => load('tasks')} />`
      : !state.loaded.has('tasks') ? html`<${Loading} of="tasks" />`
      : !rows.length ? html`<${Empty} title=${state.tasks.size ? 'No task matches.' : 'There are no tasks yet.'}><code>svc task run -- cargo test</code> runs a command as a task that you can watch here.<//>`
      : html`<${List} class="tasks" label="Tasks" count=${rows.length} height=${44} keyOf=${(index) => rows[index].task_id}
        onOpen=${(index) => go(path('tasks', rows[index].task_id, { status }))}
        row=${(index) => {
          const task = rows[index];
          return html`<div class=${`task${task.task_id === id ? ' open' : ''}`}><a class="title" href=${path('tasks', task.task_id, { status })}><bdi>${line(titleOf(task), 160)}</bdi></a>
            <${State} of=${task.status} /><span class="muted sub">${[task.agent && line(task.agent, 40), ending(task), took(task)].filter(Boolean).join(' · ')}</span>
            <${Time} at=${task.created_at} /></div>`;
        }} />`}</section>
    ${id ? html`<${Task} key=${id} id=${id} />` : ''}</div>`;
}
