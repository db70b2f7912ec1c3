// A list of any length: only the rows that are seen are in the document. All rows have one height, so nothing shifts.
import { html, useEffect, useLayoutEffect, useRef, useState } from './lib.js';

/** Rows above and below what is seen. */
const MARGIN = 8;

/**
 * `count` rows of `height` px; `row(index)` draws one, `keyOf(index)` names it. With `follow` the end stays in sight until
 * the person scrolls away. `onOpen(index)` is what Enter and a click do.
 */
export function List({ count, height, row, keyOf, label, follow = false, onFollow, onOpen, at, kind = 'list', class: name = '' }) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, rows: 40 });
  const [chosen, setChosen] = useState(-1);
  const own = useRef(false);

  const look = () => {
    const { scrollTop, clientHeight } = box.current;
    const top = Math.floor(scrollTop / height);
    const rows = Math.ceil(clientHeight / height) + 1;
    setView((known) => (known.top === top && known.rows === rows ? known : { top, rows }));
  };

  useLayoutEffect(look, [count, height]);
  useEffect(() => {
    const watch = new ResizeObserver(look);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!follow) return;
    own.current = true;
    box.current.scrollTop = count * height;
  }, [count, follow]);
  useLayoutEffect(() => {
    if (at === undefined || at < 0) return;
    own.current = true;
    setChosen(at);
    box.current.scrollTop = Math.max(0, at * height - box.current.clientHeight / 2);
  }, [at]);

  const onScroll = () => {
    look();
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    const isEnd = scrollTop + clientHeight >= scrollHeight - height;
    if (own.current) own.current = false;
    else if (onFollow && isEnd !== follow) onFollow(isEnd);
  };
  const choose = (index) => {
    if (!count) return;
    const next = Math.min(count - 1, Math.max(0, index));
    setChosen(next);
    const { scrollTop, clientHeight } = box.current;
    const top = next * height;
    if (top < scrollTop || top + height > scrollTop + clientHeight) {
      box.current.scrollTop = Math.max(0, top - clientHeight / 2);
    }
  };
  useEffect(() => {
    const step = (event) => {
      choose(chosen < 0 ? view.top : chosen + event.detail);
      box.current.focus({ preventScroll: true });
    };
    const element = box.current;
    element.addEventListener('step', step);
    return () => element.removeEventListener('step', step);
  });
  const onKey = (event) => {
    if (event.target !== box.current) return;
    if (event.key === 'Enter' && chosen >= 0 && onOpen) {
      event.preventDefault();
      onOpen(chosen);
    } else if (event.key === 'ArrowDown' && onOpen) {
      event.preventDefault();
      choose(chosen + 1);
    } else if (event.key === 'ArrowUp' && onOpen) {
      event.preventDefault();
      choose(chosen - 1);
    }
  };

  const first = Math.max(0, Math.min(view.top, count) - MARGIN);
  const last = Math.min(count, view.top + view.rows + MARGIN);
  const seen = [];
  for (let index = first; index < last; index += 1) {
    seen.push(html`<div key=${keyOf(index)} role=${kind === 'log' ? undefined : 'listitem'}
      class=${`row${index === chosen ? ' chosen' : ''}`} style=${{ top: `${index * height}px`, height: `${height}px` }}
      aria-setsize=${kind === 'log' ? undefined : count} aria-posinset=${kind === 'log' ? undefined : index + 1}
      aria-current=${index === chosen ? 'true' : undefined}
      onClick=${onOpen && ((event) => {
        if (event.target.closest('a, button') || String(getSelection())) return;
        setChosen(index);
        onOpen(index);
      })}>${row(index)}</div>`);
  }
  return html`<div ref=${box} class=${`list ${name}`} data-rows tabindex="0" aria-label=${label} onScroll=${onScroll} onKeyDown=${onKey}
    role=${kind === 'log' ? 'region' : 'list'}>
    <div class="rows" role="presentation" style=${{ height: `${count * height}px` }}>${seen}</div></div>`;
}
