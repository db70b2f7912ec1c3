// Text that others wrote. It is shown as text and never as HTML: colours of terminals are kept, every other character that
// controls something is shown as a symbol, and a link shows where it leads.
import { html, useState } from './lib.js';

// C0 without tab and line feed, DEL, C1, marks of direction, joiners and spaces without width, separators of lines, tags.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;
const SGR = /\u001b\[([0-9;:]*)m/g;
const LINK = /\bhttps?:\/\/[^\s<>"'`\u0000-\u001f\u007f-\u009f\u2028\u2029]+[^\s<>"'`.,;:!?)\]}\u0000-\u001f\u007f-\u009f]/g;
/** Longer lines are cut until somebody asks for all of it. */
const CUT = 2000;

function symbol(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return '\u2421';
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, '0')}\u27e9`;
}

// A joiner within an emoji, or within a word of a script whose letters change with their neighbours, is text.
const IN_WORD = '[\\p{Script=Arabic}\\p{Script=Syriac}\\p{Script=Nko}\\p{Script=Mongolian}\\p{Script=Devanagari}\\p{Script=Bengali}\\p{Script=Gurmukhi}\\p{Script=Gujarati}\\p{Script=Oriya}\\p{Script=Tamil}\\p{Script=Telugu}\\p{Script=Kannada}\\p{Script=Malayalam}\\p{Script=Sinhala}\\p{Script=Khmer}\\p{Script=Myanmar}\\p{Script=Balinese}\\p{Script=Javanese}]';
const DEAD = '[\\u094d\\u09cd\\u0a4d\\u0acd\\u0b4d\\u0bcd\\u0c4d\\u0ccd\\u0d4d\\u0dca]';
const JOINER = new RegExp(`(?<=${IN_WORD})[\\u200c\\u200d](?=${IN_WORD})|(?<=${DEAD})\\u200d|(?<=[\\p{Extended_Pictographic}\\p{Emoji_Modifier}]\\ufe0f?)\\u200d(?=\\p{Extended_Pictographic})`, 'gu');

/** The text with a symbol in place of every character that is not to be seen. */
export function visible(value) {
  const text = String(value ?? '');
  const joiners = /[\u200c\u200d]/.test(text) ? new Set([...text.matchAll(JOINER)].map((match) => match.index)) : null;
  return text.replace(HIDDEN, (character, ...rest) => (joiners?.has(rest.at(-2)) ? character : symbol(character)));
}

/** One line of it, for a cell. */
export function line(text, most = 240) {
  const all = String(text ?? '');
  const cut = all.length > most ? `${all.slice(0, most).replace(/[\ud800-\udbff\u200c\u200d]+$/, '')}\u2026` : all;
  return visible(cut.replace(/\s*[\r\n]+\s*/g, ' \u23ce ').replace(/\u001b\[[0-9;:]*m/g, ''));
}

function basicColour(red, green, blue) {
  const most = Math.max(red, green, blue);
  const least = Math.min(red, green, blue);
  if (most - least < 40) return null;
  const half = (most + least) / 2;
  return (red > half ? 1 : 0) | (green > half ? 2 : 0) | (blue > half ? 4 : 0);
}

function extended(codes, at) {
  if (codes[at] === 2) return [basicColour(codes[at + 1] || 0, codes[at + 2] || 0, codes[at + 3] || 0), at + 3];
  const number = codes[at + 1] ?? 7;
  if (number < 8) return [number, at + 1];
  if (number < 16) return [number - 8, at + 1];
  if (number > 231) return [null, at + 1];
  const cube = number - 16;
  const level = (value) => (value ? 55 + value * 40 : 0);
  return [basicColour(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)), at + 1];
}

function apply(style, parameters) {
  const codes = (parameters || '0').split(/[;:]/).map(Number);
  const next = { ...style };
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at];
    if (code === 0) {
      next.colour = null; next.bold = false; next.dim = false; next.italic = false; next.under = false; next.strike = false;
    } else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.under = true;
    else if (code === 9) next.strike = true;
    else if (code === 22) { next.bold = false; next.dim = false; }
    else if (code === 23) next.italic = false;
    else if (code === 24) next.under = false;
    else if (code === 29) next.strike = false;
    else if (code >= 30 && code <= 37) next.colour = code - 30;
    else if (code >= 90 && code <= 97) next.colour = code - 90;
    else if (code === 39) next.colour = null;
    else if (code === 38 || code === 48) {
      const [colour, end] = extended(codes, at + 1);
      if (code === 38) next.colour = colour;
      at = end;
    }
  }
  return next;
}

function classes(style) {
  const names = [];
  if (style.colour !== null && style.colour !== undefined && style.colour !== 0 && style.colour !== 7) names.push(`c${style.colour}`);
  if (style.bold) names.push('cb');
  if (style.dim) names.push('cd');
  if (style.italic) names.push('ci');
  if (style.under) names.push('cu');
  if (style.strike) names.push('cs');
  return names.join(' ');
}

function linked(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(LINK)) {
    if (match[0].match(HIDDEN)) continue;
    parts.push(visible(text.slice(from, match.index)));
    parts.push(html`<a href=${match[0]} target="_blank" rel="noopener noreferrer nofollow">${match[0]}</a>`);
    from = match.index + match[0].length;
  }
  parts.push(visible(text.slice(from)));
  return parts;
}

function coloured(text) {
  if (!text.includes('\u001b')) return linked(text);
  const parts = [];
  let style = {};
  let from = 0;
  const push = (part) => {
    if (!part) return;
    const name = classes(style);
    parts.push(name ? html`<span class=${name}>${linked(part)}</span>` : linked(part));
  };
  for (const match of text.matchAll(SGR)) {
    push(text.slice(from, match.index));
    style = apply(style, match[1]);
    from = match.index + match[0].length;
  }
  push(text.slice(from));
  return parts;
}

/** A text of others, with its colours and links; the beginning of a long one. */
export function Text({ value, cut = CUT }) {
  const [isWhole, setWhole] = useState(false);
  const text = typeof value === 'string' ? value : value === undefined || value === null ? '' : JSON.stringify(value, null, 2);
  if (isWhole || text.length <= cut) return html`<bdi class="text">${coloured(text)}</bdi>`;
  return html`<bdi class="text">${coloured(text.slice(0, cut))}</bdi><button class="link" onClick=${() => setWhole(true)}>
    … all ${text.length.toLocaleString('en')} characters</button>`;
}

/** A line of output: never more than what fits a row. */
export function Line({ value }) {
  const text = value.length > CUT ? `${value.slice(0, CUT)} … (${value.length.toLocaleString('en')} characters)` : value;
  return html`<bdi class="text">${coloured(text.replace(/[\r\n]+$/, ''))}</bdi>`;
}
