// Where the page is: each view has a URL, and what is chosen in it is a part of the URL.
import { useEffect, useState } from './lib.js';

export const VIEWS = ['now', 'agents', 'messages', 'tasks', 'log', 'journal', 'servers', 'health'];

const watchers = new Set();

/** A part of a path as text; as it stands there if it decodes to none. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function where() {
  const parts = location.pathname.replace(/^\/ui\/?/, '').split('/').filter(Boolean).map(decoded);
  const view = VIEWS.includes(parts[0]) ? parts[0] : 'now';
  return { view, id: parts.slice(1).join('/'), query: new URLSearchParams(location.search) };
}

export function path(view, id = '', parameters = {}) {
  const base = view === 'now' ? '/' : `/ui/${view}${id ? `/${id.split('/').map(encodeURIComponent).join('/')}` : ''}`;
  const set = Object.entries(parameters).filter(([, value]) => value);
  return set.length ? `${base}?${new URLSearchParams(set)}` : base;
}

export function go(to, replace = false) {
  if (to === location.pathname + location.search) return;
  history[replace ? 'replaceState' : 'pushState'](null, '', to);
  watchers.forEach((tell) => tell());
}

/** Changes parameters of the present URL. */
export function setQuery(changes) {
  const { view, id, query } = where();
  const next = { ...Object.fromEntries(query), ...changes };
  go(path(view, id, next), true);
}

export function useRoute() {
  const [route, set] = useState(where);
  useEffect(() => {
    const tell = () => set(where());
    watchers.add(tell);
    addEventListener('popstate', tell);
    return () => {
      watchers.delete(tell);
      removeEventListener('popstate', tell);
    };
  }, []);
  return route;
}

// Links within the page change the view without a new document.
addEventListener('click', (event) => {
  const link = event.target.closest?.('a[href^="/"]');
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.pathname !== '/' && !link.pathname.startsWith('/ui/')) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
