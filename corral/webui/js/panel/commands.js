// The commands of the palette that make sense at the moment.

import { isOn, setOn, watchIdle } from "../titles.js";
import { nextTheme } from "../theme.js";
import { promptsOf } from "../prompts.js";
import { t } from "../more_text.js";

/** Returns [{ key, name, hint, run }]. */
export function commandsOf(app, state, onOpen) {
  return [...ofPage(app, state, onOpen), ...ofChat(app, state), ...ofPrompts(app)];
}

function ofPage(app, { chats, props }, onOpen) {
  return [
    command(t("sidebar.newChat"), "Alt+N", () => app.chats.create()),
    command(t("settings.ofChat"), "Alt+S", () => onOpen("settings")),
    command(t("composer.prompts"), "", () => app.openPanel("prompts")),
    command(t("sidebar.search"), "Alt+K", () => {
      onOpen("list");
      document.getElementById("search").focus();
    }),
    chats.length > 0 && command(t("sidebar.exportAll"), "", () => app.chats.exportAs()),
    command(t("sidebar.import"), "", () => document.querySelector(".sidebar-foot input[type=file]").click()),
    command(t("command.change"), "", nextTheme),
    isOn(props)
      ? command(t("command.titlesOff"), "", () => setOn(false))
      : command(t("command.titlesOn"), "", () => (setOn(true), watchIdle(app))),
    command(t("sidebar.monitor"), "", () => location.assign("monitor")),
    command(t("keys.title"), "Alt+/", () => onOpen("keys")),
  ].filter(Boolean);
}

function ofChat(app, { chat, running }) {
  const last = chat.messages[chat.leaf];
  if (!last) return [];
  const isAnswer = last.role === "assistant" && !running[chat.id];
  return [
    running[chat.id] && command(t("command.stop"), "Esc", () => app.writer.stop()),
    isAnswer && command(t("command.regenerate"), "Alt+R", () => app.writer.regenerate(last.id)),
    isAnswer && command(t("message.compare"), "", () => app.openPanel("compare", { id: last.id })),
    last.timings && command(t("command.cost"), "", () => app.openPanel("context", { id: last.id })),
    isAnswer && command(t("command.edit"), "", () => app.openEditor(last.id)),
    command(chat.pinned ? t("command.unpin") : t("command.pin"), "", () => app.chats.changeFields(chat.id, { pinned: !chat.pinned })),
    command(t("command.organize"), "", () => app.openPanel("chat_menu", { id: chat.id })),
    command(t("command.export"), "", () => app.chats.exportAs([chat.id])),
  ].filter(Boolean);
}

function ofPrompts(app) {
  return promptsOf().map(({ id, name, isSystem }) => ({
    ...command(name, isSystem ? t("settings.system") : t("command.prompt"), () => app.openPanel("prompts", { useId: id })),
    key: id,
  }));
}

function command(name, hint, run) {
  return { key: name, name, hint, run };
}
