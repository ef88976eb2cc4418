// What was written but not sent, for as long as the tab lives.

const DRAFT = "corral.draft.";

export function draftOf(chatId) {
  return sessionStorage.getItem(DRAFT + chatId) ?? "";
}

export function keepDraft(chatId, text) {
  try {
    sessionStorage.setItem(DRAFT + chatId, text);
  } catch {
    // larger than what the browser keeps: it is in the message box only
  }
}
