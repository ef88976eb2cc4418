// The prompt library of this browser: texts with {{variables}}, for messages or as system prompts.

import { newId } from "./tree.js";
import { t } from "./text.js";

const KEY = "corral.prompts";
const VARIABLE = /\{\{\s*([^{}\n]{1,60}?)\s*\}\}/g;

/** Returns [{ id, name, text, isSystem }], by name. */
export function promptsOf() {
  return stored().sort((a, b) => a.name.localeCompare(b.name));
}

/** Stores a prompt, a new one without `id`. Throws Error if the browser does not allow it. */
export function savePrompt({ id = newId(), name, text, isSystem = false }) {
  const others = stored().filter((each) => each.id !== id);
  keep([...others, { id, name, text, isSystem }]);
}

export function removePrompt(id) {
  keep(stored().filter((each) => each.id !== id));
}

/** Returns the names of the variables, each once, in their order. */
export function variablesOf(text) {
  return [...new Set(Array.from(text.matchAll(VARIABLE), ([, name]) => name))];
}

/** Replaces the variables; values are inserted as they are, also if they look like variables. */
export function filledIn(text, values) {
  return text.replace(VARIABLE, (_, name) => values[name] ?? "");
}

/** Reads only what has the right shape: other pages of this origin may write there. */
function stored() {
  try {
    return (JSON.parse(localStorage.getItem(KEY)) ?? []).filter(isPrompt);
  } catch {
    return [];
  }
}

function isPrompt(each) {
  return ["id", "name", "text"].every((field) => typeof each?.[field] === "string");
}

function keep(prompts) {
  try {
    localStorage.setItem(KEY, JSON.stringify(prompts));
  } catch {
    throw new Error(t("common.storageFull"));
  }
}
