// A chat that contains the text of a search: its title, the words around the first place, and marks.

import { html } from "../html.js";
import { loadOwnStyle } from "../style.js";
import { t } from "../text.js";

await loadOwnStyle("found");

export function Found({ entry: { title, snippet }, query }) {
  return html`<span class="found-title">${marked(title || t("sidebar.newChat"), query)}</span>
    ${snippet && snippet !== title && html`<small class="snippet soft">${marked(snippet, query)}</small>`}`;
}

/** Returns the parts of a text, those that were searched for as marks. */
function marked(text, query) {
  const lower = text.toLowerCase();
  const wanted = query.toLowerCase();
  if (lower.length !== text.length) return text; // places would be others
  const parts = [];
  let end = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, end)) {
    parts.push(text.slice(end, at), html`<mark>${text.slice(at, at + wanted.length)}</mark>`);
    end = at + wanted.length;
  }
  return [...parts, text.slice(end)];
}
