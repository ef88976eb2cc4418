// Keyboard shortcuts, and their list.

import { html } from "../html.js";
import { isModalOpen, useModal } from "./modal.js";
import { t } from "../text.js";

const SHORTCUTS = [
  ["Enter", t("keys.send")],
  ["Esc", t("keys.stop")],
  ["Ctrl+K", t("keys.palette")],
  ["Alt+N", t("keys.newChat")],
  ["Alt+K", t("keys.search")],
  ["Alt+S", t("keys.settings")],
  ["Alt+R", t("keys.regenerate")],
  ["Alt+/", t("keys.list")],
];

export function onShortcut(event, app, setOpen) {
  if (isModalOpen()) return undefined; // the dialog handles keys, and Escape closes it
  const { chat, running } = app.state;
  if (event.key === "Escape") {
    if (running[chat.id]) app.writer.stop();
    else setOpen("");
    return undefined;
  }
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.code === "KeyK") {
    event.preventDefault();
    return app.openPanel("palette");
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return undefined;
  const actions = {
    KeyN: () => app.chats.create(),
    KeyK: () => {
      setOpen("list");
      document.getElementById("search").focus();
    },
    KeyS: () => setOpen((open) => (open === "settings" ? "" : "settings")),
    KeyR: () => chat.messages[chat.leaf]?.role === "assistant" && app.writer.regenerate(chat.leaf),
    Slash: () => setOpen("keys"),
  };
  const action = actions[event.code];
  if (!action) return undefined;
  event.preventDefault();
  return action();
}

export function Shortcuts({ onClose }) {
  const dialog = useModal();
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="keys-title">
    <h2 id="keys-title">${t("keys.title")}</h2>
    <dl class="keys">
      ${SHORTCUTS.map(([key, what]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${what}</dd>`)}
    </dl>
    <form method="dialog"><button class="primary">${t("common.close")}</button></form>
  </dialog>`;
}
