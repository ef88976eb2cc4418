// Actions after a failed answer.

import { html } from "../html.js";
import { ancestry } from "../tree.js";
import { Icon } from "./icon.js";
import { t } from "../text.js";

export function Remedies({ message, app }) {
  const { remedies = ["again"] } = message;
  return html`${offers(message, app)
    .filter(([name]) => remedies.includes(name))
    .map(
      ([name, icon, label, onClick]) =>
        html`<button key=${name} type="button" onClick=${onClick}><${Icon} name=${icon} /> ${label}</button>`,
    )}`;
}

/** Returns the possible actions: only a user message can be shortened, and the first one has no earlier message. */
function offers(message, app) {
  const path = ancestry(app.state.chat, message.parent);
  const written = path.filter(({ role }) => role === "user");
  const last = path.at(-1) === written.at(-1) ? written.pop() : undefined;
  const earlier = written.at(-1);
  const draft = earlier ? (last?.content ?? "") : ""; // alone it may fit
  return [
    last && ["shorten", "edit", t("remedy.shorten"), () => app.openEditor(last.id)],
    earlier && ["back", "left", t("remedy.back"), () => app.openEditor(earlier.id)],
    ["new", "plus", t("remedy.new"), () => app.chats.create(draft)],
    ["again", "again", t("remedy.again"), () => app.writer.regenerate(message.id)],
  ].filter(Boolean);
}
