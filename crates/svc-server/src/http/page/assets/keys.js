// The keyboard: every view answers the same keys. Nothing is taken from a field that somebody writes in.
import { go, path } from './router.js';

const VIEW_KEYS = { n: 'now', a: 'agents', m: 'messages', t: 'tasks', l: 'log', j: 'journal', s: 'servers', h: 'health' };

export const HELP = [
  ['/', 'search in this view'],
  ['j, k', 'next and previous row'],
  ['Enter', 'open the row'],
  ['g, then n a m t l j s h', 'now, agents, messages, tasks, log, journal, servers, health'],
  ['Esc', 'leave a field, close what is open'],
  ['?', 'these keys'],
];

let isGoing = 0;

function isWriting(target) {
  return target.closest?.('input, textarea, select, [contenteditable]');
}

function rows() {
  return [...document.querySelectorAll('main [data-row]')];
}

function move(by) {
  const list = document.querySelector('main [data-rows]');
  if (list) return list.dispatchEvent(new CustomEvent('step', { detail: by }));
  const all = rows();
  if (!all.length) return undefined;
  const at = all.indexOf(document.activeElement?.closest?.('[data-row]'));
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  (next.matches('a, button, [tabindex]') ? next : next.querySelector('a, button, [tabindex]'))?.focus();
  next.scrollIntoView({ block: 'nearest' });
  return undefined;
}

export function listen(showHelp) {
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { key, target } = event;
    if (key === 'Escape') {
      if (isWriting(target)) target.blur();
      return;
    }
    if (isWriting(target) || document.querySelector('dialog[open]')) return;
    const going = Date.now() - isGoing < 1500;
    isGoing = 0;
    if (going && VIEW_KEYS[key]) go(path(VIEW_KEYS[key]));
    else if (key === 'g') isGoing = Date.now();
    else if (key === '/') document.querySelector('main [data-search]')?.focus();
    else if (key === 'j') move(1);
    else if (key === 'k') move(-1);
    else if (key === '?') showHelp();
    else return;
    event.preventDefault();
  });
}
