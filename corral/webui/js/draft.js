// Unsent messages: their texts are kept until the tab is closed, their files until the page is. Also the settings of a new chat
// without messages.

const DRAFT = "corral.draft.";
const UNSENT = "corral.unsent";
const NOTHING = { images: [], files: [], audio: [] };

const parts = new Map(); // of messages, by chat

export function draftOf(chatId) {
  return sessionStorage.getItem(DRAFT + chatId) ?? "";
}

export function keepDraft(chatId, text) {
  keep(DRAFT + chatId, text);
}

export function partsOf(chatId) {
  return parts.get(chatId) ?? NOTHING;
}

/** `change`: a function from parts to parts; without it there are none. */
export function keepParts(chatId, change = () => NOTHING) {
  parts.set(chatId, change(partsOf(chatId)));
}

/** Keeps the settings of a chat without messages for a reload; `null`: there are none. */
export function keepUnsent(chat) {
  keep(UNSENT, JSON.stringify(chat && { id: chat.id, system: chat.system, settings: chat.settings }));
}

/** Returns { id, system, settings } of the chat without messages before a reload, or null. */
export function unsent() {
  return JSON.parse(sessionStorage.getItem(UNSENT));
}

function keep(key, text) {
  try {
    sessionStorage.setItem(key, text);
  } catch {
    // too large for the browser's storage: it is only on the page
  }
}
