// Times: relative, with the exact one on hover. One clock moves them all.
import { html, useEffect, useState } from './lib.js';

const watchers = new Set();
setInterval(() => watchers.forEach((tell) => tell()), 10_000);

export function useClock() {
  const [, set] = useState(0);
  useEffect(() => {
    const tell = () => set((n) => n + 1);
    watchers.add(tell);
    return () => watchers.delete(tell);
  }, []);
}

export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 && hours < 10 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

export function Time({ at }) {
  useClock();
  if (!at) return html`<span class="muted">–</span>`;
  const past = Date.now() - Date.parse(at);
  const text = past < 0 ? `in ${duration(-past)}` : past < 10_000 ? 'now' : duration(past);
  return html`<time datetime=${at} title=${exact(at)}>${text}</time>`;
}

export function exact(at) {
  return `${new Date(at).toLocaleString()} (${at})`;
}

/** A moment as text, whether it came as text or as Unix milliseconds. */
export function moment(at) {
  if (typeof at !== 'number') return at || undefined;
  return at > 0 ? new Date(at).toISOString() : undefined;
}

export function clock(at) {
  return new Date(at).toLocaleTimeString('en-GB', { hour12: false });
}
