// The commands of the palette that make sense at the moment.

import { isOn, setOn, watchIdle } from "../titles.js";
import { nextTheme } from "../theme.js";
import { promptsOf } from "../prompts.js";

/** Returns [{ key, name, hint, run }]. */
export function commandsOf(app, state, onOpen) {
  return [...ofPage(app, state, onOpen), ...ofChat(app, state), ...ofPrompts(app)];
}

function ofPage(app, { chats, props }, onOpen) {
  return [
    command("New chat", "Alt+N", () => app.newChat()),
    command("Settings of this chat", "Alt+S", () => onOpen("settings")),
    command("Prompts", "", () => app.openPanel("prompts")),
    command("Search chats", "Alt+K", () => {
      onOpen("list");
      document.getElementById("search").focus();
    }),
    chats.length > 0 && command("Export all chats", "", () => app.exportChats()),
    command("Import chats", "", () => document.querySelector(".sidebar-foot input[type=file]").click()),
    command("Change the theme", "", nextTheme),
    isOn(props)
      ? command("Titles by the model: switch off", "", () => setOn(false))
      : command("Titles by the model: switch on", "", () => (setOn(true), watchIdle(app))),
    command("Monitor", "", () => location.assign("monitor")),
    command("Keys", "Alt+/", () => onOpen("keys")),
  ].filter(Boolean);
}

function ofChat(app, { chat, running }) {
  const last = chat.messages[chat.leaf];
  if (!last) return [];
  const isAnswer = last.role === "assistant" && !running[chat.id];
  return [
    running[chat.id] && command("Stop the answer", "Esc", () => app.stop()),
    isAnswer && command("Regenerate the last answer", "Alt+R", () => app.regenerate(last.id)),
    isAnswer && command("Compare answers", "", () => app.openPanel("compare", { id: last.id })),
    last.timings && command("Cost and context of the last answer", "", () => app.openPanel("context", { id: last.id })),
    isAnswer && command("Edit the last answer", "", () => app.openEditor(last.id)),
    command(chat.pinned ? "Unpin this chat" : "Pin this chat", "", () => app.changeChat(chat.id, { pinned: !chat.pinned })),
    command("Organize and share this chat", "", () => app.openPanel("chat_menu", { id: chat.id })),
    command("Export this chat", "", () => app.exportChats([chat.id])),
  ].filter(Boolean);
}

function ofPrompts(app) {
  return promptsOf().map(({ id, name, isSystem }) => ({
    ...command(name, isSystem ? "System prompt" : "Prompt", () => app.openPanel("prompts", { useId: id })),
    key: id,
  }));
}

function command(name, hint, run) {
  return { key: name, name, hint, run };
}
