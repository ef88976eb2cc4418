// The title of a chat in the list, while it is being written.

import { html } from "../html.js";
import { t } from "../more_text.js";
import { useFocus } from "./focus.js";

export function TitleField({ entry: { id, title }, app }) {
  const field = useFocus();
  const end = (written) => {
    if (app.state.renaming !== id) return; // leaving the field ends it, too
    app.set({ renaming: "" });
    if (written.trim() && written !== title) app.chats.changeFields(id, { title: written.trim() });
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter") end(event.target.value);
    if (event.key === "Escape") end("");
    if (["Enter", "Escape"].includes(event.key)) event.stopPropagation();
  };
  return html`<input
    ref=${field}
    aria-label=${t("sidebar.title")}
    dir="auto"
    defaultValue=${title}
    onBlur=${(event) => end(event.target.value)}
    onKeyDown=${onKeyDown}
  />`;
}
