// Several chats at once: which ones, and what is done with all of them.

import { html, useEffect } from "../html.js";
import { loadOwnStyle } from "../style.js";
import { t } from "../more_text.js";
import { Icon, IconButton } from "./icon.js";

let last = ""; // chosen; with Shift, all up to the next one are

await loadOwnStyle("found");

/** An entry of the list while chats are being chosen. */
export function Choice({ entry: { id, title }, selected, app }) {
  const isChosen = selected.includes(id);
  const onClick = ({ shiftKey }) => {
    const range = shiftKey ? between(last, id) : [id];
    last = id;
    const others = app.state.selected.filter((each) => !range.includes(each));
    app.set({ selected: isChosen ? others : [...others, ...range] });
  };
  return html`<label class="choice" dir="auto" title=${title}>
    <input type="checkbox" value=${id} checked=${isChosen} onClick=${onClick} />
    <span>${title || t("sidebar.newChat")}</span>
  </label>`;
}

/** Returns the ids of the list from one to the other. */
function between(from, to) {
  const ids = listed();
  const [first, end] = [ids.indexOf(from), ids.indexOf(to)].sort((a, b) => a - b);
  return first < 0 ? [to] : ids.slice(first, end + 1);
}

function listed() {
  return [...document.querySelectorAll(".choice>input")].map(({ value }) => value);
}

/** What is done with the chosen chats. */
export function Selection({ app, state: { selected } }) {
  const leave = () => app.set({ selected: null });
  useEffect(() => {
    const onKeyDown = (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      event.stopPropagation(); // it would stop an answer
      leave();
    };
    addEventListener("keydown", onKeyDown, true);
    return () => removeEventListener("keydown", onKeyDown, true);
  }, []);
  const act = (action) => async () => {
    leave();
    await action().catch((error) => app.tell(error.message, "bad"));
  };
  const all = listed();
  const isAll = all.length > 0 && all.every((id) => selected.includes(id));
  const isNone = selected.length === 0;
  return html`<div class="selection" role="group" aria-label=${t("selection.title")}>
    <div class="selection-head">
      <strong role="status">${t("selection.n", { n: selected.length })}</strong>
      <button type="button" class="plain" onClick=${() => app.set({ selected: isAll ? [] : all })}>${isAll ? t("selection.none") : t("selection.all")}</button>
      <${IconButton} icon="close" label=${t("selection.leave")} onClick=${leave} />
    </div>
    <div class="row">
      <button type="button" disabled=${isNone} onClick=${() => app.openPanel("move", { ids: selected })}><${Icon} name="folder" /> ${t("menu.move")}</button>
      <button type="button" disabled=${isNone} onClick=${act(() => app.chats.exportAs(selected))}><${Icon} name="download" /> ${t("sidebar.export")}</button>
      <button type="button" class="bad" disabled=${isNone} onClick=${act(() => app.chats.remove(...selected))}><${Icon} name="trash" /> ${t("common.delete")}</button>
    </div>
  </div>`;
}
