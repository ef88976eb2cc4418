// Renders formulas with KaTeX once it is loaded; invalid ones stay as text.

import { formulaOf } from "./formula_syntax.js";

const FOLDER = new URL("../../vendor/katex/", import.meta.url);
const SETTINGS = {
  throwOnError: true,
  trust: false, // no links, no images, no classes
  strict: "ignore",
  maxExpand: 500,
  maxSize: 20,
  errorColor: "currentcolor",
};

const MAX_DEPTH = 200; // nested elements: browsers fail on thousands
const MAX_NODES = 20_000;

export const sources = new WeakMap(); // what was written, by the node of a formula

let katex = null;
let loading = null;

/** Replaces the TeX in `node` by the rendered formula. */
export async function showFormula(node) {
  if (!katex) await load();
  if (katex) draw(node);
}

function draw(node) {
  const written = node.textContent;
  const { tex, isDisplayed } = formulaOf(written);
  const drawn = document.createElement("span");
  try {
    katex.render(tex, drawn, { ...SETTINGS, displayMode: isDisplayed });
  } catch {
    return; // invalid or too long TeX
  }
  if (isTooMuch(drawn)) return;
  node.replaceChildren(...drawn.childNodes);
  node.classList.add("is-drawn");
  sources.set(node, written);
}

function isTooMuch(drawn) {
  const walker = document.createTreeWalker(drawn);
  let depth = 0;
  for (let n = 0; n < MAX_NODES && depth < MAX_DEPTH; n += 1) {
    if (walker.firstChild()) {
      depth += 1;
      continue;
    }
    while (!walker.nextSibling()) {
      if (!walker.parentNode()) return false;
      depth -= 1;
    }
  }
  return true;
}

async function load() {
  const style = () => import("../style.js").then(({ loadStyle }) => loadStyle(new URL("katex.css", FOLDER)));
  loading ??= Promise.all([import(new URL("katex.mjs", FOLDER)), style()]);
  try {
    katex = (await loading)[0].default;
    import("./formula_copy.js").catch(() => {}); // then formulas are copied as they look
  } catch {
    loading = null;
  }
}
