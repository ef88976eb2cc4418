// Unsent messages, kept until the tab is closed.

const DRAFT = "corral.draft.";

export function draftOf(chatId) {
  return sessionStorage.getItem(DRAFT + chatId) ?? "";
}

export function keepDraft(chatId, text) {
  try {
    sessionStorage.setItem(DRAFT + chatId, text);
  } catch {
    // too large for the browser's storage: it is only in the message box
  }
}
