// Markdown as models write it: tables, line breaks and formulas; HTML is shown as text. What would take too long to
// parse stays plain text.

import { Lexer, Marked, Parser, Tokenizer } from "../../vendor/marked.mjs";
import { escape } from "./escape.js";
import { FORMULA_SYNTAX, maskFormulas } from "./formula_syntax.js";

const MAX_DEPTH = 20; // nested lists and quotes
const MAX_RUN = 20_000; // characters of a paragraph, a cell, an item
const MAX_MARKS = 1_000; // of emphasis in it
const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const SAFE_IMAGE = /^data:image\/(?:png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/]+=*$/i;

/** Returns the blocks of `text` as tokens. `links`: known link definitions, to which those of the text are added. */
export function readBlocks(text, links) {
  const lexer = new Lexer({ ...marked.defaults, tokenizer: new ModelTokenizer() });
  lexer.tokens.links = links;
  lexer.blockTokens(text, lexer.tokens);
  for (const { src, tokens } of lexer.inlineQueue) {
    if (isTooMuch(src)) tokens.push({ type: "text", raw: src, text: src, escaped: false });
    else lexer.inlineTokens(src, tokens);
  }
  return [...lexer.tokens];
}

/** Returns the HTML of a block, which is not sanitized yet. */
export function writeHtml(token) {
  return Parser.parse([token], marked.defaults);
}

/** Returns the language of a block of code, or "". */
export function languageOf({ lang }) {
  return /^[\w+#.-]{1,30}/.exec(lang ?? "")?.[0] ?? "";
}

class ModelTokenizer extends Tokenizer {
  #depth = 0;

  list(src) {
    return this.#deeper(() => super.list(src));
  }

  blockquote(src) {
    return this.#deeper(() => super.blockquote(src));
  }

  html() {}

  /** Allows only `<br>`, the only way to break a line in a table cell. */
  tag(src) {
    const found = /^<br\s{0,9}\/?>/i.exec(src);
    return found ? { type: "br", raw: found[0] } : undefined;
  }

  #deeper(read) {
    if (this.#depth === MAX_DEPTH) return undefined;
    this.#depth += 1;
    try {
      return read();
    } finally {
      this.#depth -= 1;
    }
  }
}

const renderer = {
  html({ text }) {
    return escape(text);
  },

  code(token) {
    return `<pre><code class="language-${languageOf(token)}">${escape(token.text)}</code></pre>`;
  },

  link({ href, title, tokens, raw }) {
    return SAFE_LINK.test(href) ? anchor(href, title, this.parser.parseInline(tokens)) : escape(raw);
  },

  image({ href, title, text, raw }) {
    if (SAFE_IMAGE.test(href)) return `<img src="${escape(href)}" alt="${escape(text)}">`;
    return SAFE_LINK.test(href) ? anchor(href, title, escape(text || href)) : escape(raw);
  },

  listitem({ task, tokens }) {
    return `<li${task ? ' class="task"' : ""}>${this.parser.parse(tokens)}</li>\n`;
  },

  checkbox({ checked }) {
    return checked ? "☑ " : "☐ ";
  },
};

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer,
  extensions: FORMULA_SYNTAX,
  hooks: { emStrongMask: maskFormulas },
});

function isTooMuch(run) {
  return run.length > MAX_RUN || (run.length > MAX_MARKS && (run.match(/[*_~]+/g)?.length ?? 0) > MAX_MARKS);
}

function anchor(href, title, content) {
  return `<a href="${escape(href)}"${title ? ` title="${escape(title)}"` : ""}>${content}</a>`;
}
