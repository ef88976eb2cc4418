// Exports and imports chats, and moves them between stores.

import { checkedChat, object } from "./chat_check.js";
import { chatOfLlama } from "./llama_export.js";
import { Conflict } from "./save_queue.js";
import { newId } from "./tree.js";
import { t } from "./more_text.js";

const FORMAT = "corral-chats";
const VERSION = 1;
const MAX_CHARS = 256 << 20;
const MAX_CHATS = 10_000;

/** Returns the text of a file for `importChats`. */
export function exportChats(chats) {
  const own = chats.map(({ revision: _, ...chat }) => chat);
  return JSON.stringify({ format: FORMAT, version: VERSION, chats: own }, null, 1);
}

/** Reads the chats of a file of this page or of llama-server's; `taken` ids are replaced. Throws Error. */
export function importChats(text, taken = []) {
  if (text.length > MAX_CHARS) throw new Error(t("import.tooLarge", { n: MAX_CHARS >> 20 }));
  const found = entriesOf(parsed(text));
  if (found.length > MAX_CHATS) throw new Error(t("import.tooMany", { n: MAX_CHATS }));
  const ids = new Set(taken);
  return found.map((read, i) => {
    const chat = explained(read, i);
    if (ids.has(chat.id)) chat.id = newId();
    ids.add(chat.id);
    return chat;
  });
}

/** Lets the browser save a file. */
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // some browsers start later
}

/** Returns a name for a file about this. */
export function fileName(title) {
  return title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "chat";
}

/** Moves all chats of a store to another one; each is removed once it is copied. Returns the number. */
export async function moveChats(from, to) {
  const chats = await from.list();
  for (const { id } of chats) {
    const chat = await from.load(id);
    if (!chat) continue;
    await copyChat(chat, to);
    await from.remove(id);
  }
  return chats.length;
}

/** Copies a chat, under a new id if its id is taken. */
async function copyChat({ revision: _, ...chat }, to) {
  try {
    await to.save(chat, chat.updatedAt);
  } catch (error) {
    if (!(error instanceof Conflict)) throw error;
    await to.save({ ...chat, id: newId() }, chat.updatedAt);
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(t("import.notJson"));
  }
}

/** Returns a function for every chat of a file that reads it. */
function entriesOf(file) {
  if (file?.format === FORMAT) {
    if (file.version !== VERSION) throw new Error(t("import.newer"));
    if (!Array.isArray(file.chats)) throw new Error(t("import.noList"));
    return file.chats.map((chat) => () => checkedChat(chat));
  }
  const all = Array.isArray(file) ? file : [file];
  if (!all.length || !all.every((each) => each?.conv && each.messages)) {
    throw new Error(t("import.unknown"));
  }
  return all.map((each) => () => checkedChat(chatOfLlama(object(each, "chat"))));
}

function explained(read, i) {
  try {
    return read();
  } catch (error) {
    throw new Error(t("import.notRead", { n: i + 1, reason: error.message }));
  }
}
