// Finds formulas: `$...$`, `$$...$$`, `\(...\)`, `\[...\]`, but not amounts of money.

import { escape } from "./escape.js";

const MAX_LENGTH = 4_000;
const CLOSING = { $: "$", $$: "$$", "\\(": "\\)", "\\[": "\\]" };
const IN_TEXT = /\$\$[^$]{1,1000}\$\$|\$(?![\s$])[^$\n]{0,1000}(?<![\s\\])\$(?!\d)|\\\([^]{1,1000}?\\\)/g;

/** Extensions of Marked; their HTML contains the source, and its class the kind. */
export const FORMULA_SYNTAX = [
  {
    name: "formula",
    level: "block",
    start: nextBlock,
    tokenizer: readBlock,
    renderer: ({ text }) => `<p><span class="formula">${escape(text)}</span></p>`,
  },
  {
    name: "formulaInText",
    level: "inline",
    start: (src) => src.match(/\$|\\[([]/)?.index,
    tokenizer: readInText,
    renderer: ({ text }) => `<span class="formula">${escape(text)}</span>`,
  },
];

/** Masks formulas, whose stars and underscores are not emphasis; keeps the length. */
export function maskFormulas(src) {
  return src.replace(IN_TEXT, (formula) => "a".repeat(formula.length));
}

/** Returns the TeX, and whether it is a display formula. */
export function formulaOf(text) {
  const nDelimiter = text.startsWith("$") && !text.startsWith("$$") ? 1 : 2;
  return { tex: text.slice(nDelimiter, -nDelimiter), isDisplayed: /^(?:\$\$|\\\[)/.test(text) };
}

/** Searches up to the end of the paragraph. */
function nextBlock(src) {
  const end = src.search(/\n[ \t]*\n/);
  const found = (end < 0 ? src : src.slice(0, end)).match(/\n {0,3}(?:\$\$|\\\[)/);
  return found ? found.index + 1 : undefined;
}

function readBlock(src) {
  const opening = /^ {0,3}(\$\$|\\\[)/.exec(src);
  if (!opening) return undefined;
  const text = enclosed(src.slice(opening[0].length - 2, MAX_LENGTH + 10), opening[1]);
  if (!text) return undefined;
  const rest = /^[ \t]*(?:\n+|$)/.exec(src.slice(opening[0].length - 2 + text.length));
  if (!rest) return undefined;
  return { type: "formula", raw: opening[0].slice(0, -2) + text + rest[0], text };
}

function readInText(src, tokens) {
  const opening = /^(?:\$\$?|\\[([])/.exec(src)?.[0];
  if (!opening) return undefined;
  const text = enclosed(src.slice(0, MAX_LENGTH), opening);
  if (!text || (opening === "$" && !isFormula(text, src[text.length], tokens.at(-1)?.raw.at(-1)))) return undefined;
  return { type: "formulaInText", raw: text, text };
}

/** From the opening to the closing delimiter, if there is something between them but no empty line. */
function enclosed(src, opening) {
  const closing = CLOSING[opening];
  const end = src.indexOf(closing, opening.length);
  if (end < 0) return "";
  const body = src.slice(opening.length, end);
  return body.trim() && !/\n[ \t]*\n/.test(body) ? src.slice(0, end + closing.length) : "";
}

/** Matches a formula between single dollars, but not "$5 and $6". */
function isFormula(text, next = " ", previous = " ") {
  const body = text.slice(1, -1);
  return !/^\s|\s$|\\$|\n/.test(body) && !/\d/.test(next) && !/[\w$]/.test(previous);
}
