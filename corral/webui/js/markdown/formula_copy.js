// Copies formulas as LaTeX: those in a selection, or the one that is clicked.

import { copyText } from "../clipboard.js";
import { sources } from "./formula.js";

const FORMULA = ".formula.is-drawn";
const SHOWN_MS = 1_200;

document.addEventListener("copy", onCopy);
document.addEventListener("click", onClick);

function onCopy(event) {
  const selection = getSelection();
  if (selection.isCollapsed || selection.rangeCount === 0) return;
  const range = selection.getRangeAt(0);
  const within = (range.commonAncestorContainer.parentElement ?? document.body).closest(FORMULA);
  const text = within ? sources.get(within) : textOf(range);
  if (text === null) return;
  event.clipboardData.setData("text/plain", text);
  event.preventDefault();
}

/** Returns the text with formulas as they were written; null without formulas. */
function textOf(range) {
  const copy = Object.assign(document.createElement("div"), { className: "unseen copied" });
  copy.append(range.cloneContents());
  const formulas = copy.querySelectorAll(FORMULA);
  if (!formulas.length) return null;
  const drawn = [...document.querySelectorAll(FORMULA)].filter((each) => range.intersectsNode(each));
  for (const [i, each] of formulas.entries()) each.replaceWith(sources.get(drawn[i]) ?? "");
  document.body.append(copy); // only what is laid out has line breaks in its innerText
  const text = copy.innerText;
  copy.remove();
  return text;
}

async function onClick({ target }) {
  const formula = target.closest?.(FORMULA);
  if (!formula || !getSelection().isCollapsed) return;
  await copyText(sources.get(formula));
  formula.classList.add("is-copied");
  setTimeout(() => formula.classList.remove("is-copied"), SHOWN_MS);
}
