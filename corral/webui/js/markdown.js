// Renders the text of a model. It may grow: unchanged blocks keep their DOM nodes.

import { Blocks } from "./markdown/block.js";
import { CodeBlock } from "./markdown/code_block.js";
import { showFormula } from "./markdown/formula.js";
import { safeFragments } from "./markdown/safe.js";
import { languageOf, writeHtml } from "./markdown/syntax.js";
import { t } from "./text.js";

// A longer text is shown as plain text.
const MAX_LENGTH = 200_000;
const MAX_LINES = 10_000;
const MAX_FORMULAS = 1_000; // rendered ones
// An incomplete line that may become a list, a fence or a table row.
const BEGINNING = /^[ \t]*(?:[-=*+_`~#>|:$\\ \t]{1,200}|\d{1,2}[.)]?)$/;

const FENCE_END = /\n[ \t]*(?:`{3,}|~{3,})[ \t]*\n?$/;

const shown = new WeakMap();

/** Renders `text` in `element`, which it owns from then on. Resolves when everything is loaded. */
export function renderMarkdown(text, element, { isWriting = false } = {}) {
  let message = shown.get(element);
  if (!message) shown.set(element, (message = new Message(element)));
  return message.show(text.replace(/\r\n?/g, "\n"), isWriting);
}

/** The blocks in an element. */
class Message {
  #blocks = new Blocks();
  #parts = [];
  #plain = null;

  constructor(element) {
    this.element = element;
    element.classList.add("markdown");
    element.replaceChildren();
  }

  async show(text, isWriting) {
    this.element.classList.toggle("is-writing", isWriting);
    if (isTooLong(text)) return this.#showPlain(text);
    let ready;
    try {
      ready = this.#showBlocks(this.#blocks.read(isWriting ? withoutBeginning(text) : text));
    } catch {
      return this.#showPlain(text); // the parser failed
    }
    return ready;
  }

  #showBlocks(blocks) {
    if (this.#plain) this.#clear();
    const isNew = blocks.map(({ type, key }, i) => type !== "code" && this.#parts[i]?.key !== key);
    const fragments = safeFragments(blocks.filter((_, i) => isNew[i]).map(writeHtml)).values();
    const loading = [];
    let nFormulas = 0;
    for (const [i, block] of blocks.entries()) {
      const part = this.#showBlock(block, i, () => new TextPart(block.key, fragments.next().value, nFormulas));
      nFormulas += part.nFormulas;
      loading.push(part.ready);
    }
    for (const part of this.#parts.splice(blocks.length)) part.remove();
    return Promise.all(loading);
  }

  #showBlock(block, i, newText) {
    const part = this.#parts[i];
    if (part?.key === block.key) return part;
    if (block.type === "code" && part?.language === languageOf(block)) return part.become(block);
    const fresh = (this.#parts[i] = block.type === "code" ? new CodePart(block) : newText());
    if (part) part.replaceWith(fresh);
    else this.element.append(...fresh.nodes);
    return fresh;
  }

  #showPlain(text) {
    if (this.#plain && text.startsWith(this.#plain.data)) {
      this.#plain.appendData(text.slice(this.#plain.length));
      return;
    }
    this.#clear();
    this.#plain = new Text(text);
    const whole = Object.assign(document.createElement("div"), { className: "plain-text" });
    whole.append(this.#plain);
    this.element.replaceChildren(whole);
  }

  #clear() {
    this.#blocks = new Blocks();
    this.#parts = [];
    this.#plain = null;
    this.element.replaceChildren();
  }
}

/** A block and its DOM nodes, at least one. */
class TextPart {
  constructor(key, fragment, nFormulasBefore) {
    this.key = key;
    const formulas = [...fragment.querySelectorAll(".formula")];
    this.nFormulas = formulas.length;
    const drawn = formulas.slice(0, Math.max(0, MAX_FORMULAS - nFormulasBefore));
    this.ready = Promise.all([...dressCode(fragment), ...drawn.map(showFormula)]);
    dressTables(fragment);
    for (const node of fragment.querySelectorAll("ul, ol, table, blockquote")) node.dir = "auto"; // by its language
    if (!fragment.firstChild) fragment.append("");
    this.nodes = [...fragment.childNodes];
  }

  replaceWith(other) {
    this.nodes[0].before(...other.nodes);
    this.remove();
  }

  remove() {
    for (const node of this.nodes) node.remove();
  }
}

/** Code that grows in place and keeps its button and scroll position. */
class CodePart {
  nFormulas = 0;

  constructor(block) {
    this.language = languageOf(block);
    this.code = new CodeBlock(this.language);
    this.nodes = [this.code.element];
    this.become(block);
  }

  become({ key, text, raw }) {
    this.key = key;
    this.ready = this.code.show(text, FENCE_END.test(raw));
    return this;
  }

  replaceWith(other) {
    this.nodes[0].replaceWith(...other.nodes);
  }

  remove() {
    this.nodes[0].remove();
  }
}

function dressCode(fragment) {
  return [...fragment.querySelectorAll("pre")].map((pre) => {
    const written = pre.querySelector("code");
    const code = new CodeBlock(written.className.replace("language-", ""));
    pre.replaceWith(code.element);
    return code.show(written.textContent);
  });
}

/** Gives each table its own scroll bar. */
function dressTables(fragment) {
  for (const table of fragment.querySelectorAll("table")) {
    const frame = Object.assign(document.createElement("div"), { className: "table", tabIndex: 0 });
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", t("code.table"));
    table.replaceWith(frame);
    frame.append(table);
  }
}

function withoutBeginning(text) {
  const at = text.lastIndexOf("\n") + 1;
  return BEGINNING.test(text.slice(at)) ? text.slice(0, at) : text;
}

export function isTooLong(text) {
  if (text.length > MAX_LENGTH) return true;
  let nLines = 0;
  for (let at = text.indexOf("\n"); at >= 0 && nLines <= MAX_LINES; at = text.indexOf("\n", at + 1)) nLines += 1;
  return nLines > MAX_LINES;
}
