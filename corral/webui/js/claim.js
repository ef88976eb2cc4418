// Tracks with browser locks which chats have a running answer in some tab.

import { changeMessage } from "./tree.js";
import { t } from "./text.js";

export const CLOSED = t("app.closed");

/** Locks a chat until the returned function is called or the tab is closed. */
export async function claim(id) {
  if (!navigator.locks) return () => {};
  let release;
  const held = new Promise((resolve) => (release = resolve));
  await new Promise((granted) => {
    navigator.locks.request(name(id), { mode: "shared" }, () => {
      granted();
      return held;
    });
  });
  return release;
}

/** Returns the answers that no tab receives, but whose streams the server may have. */
export async function leftovers(chat) {
  const left = Object.values(chat.messages).filter(({ state, stream }) => state === "writing" && stream);
  return !left.length || (await isClaimed(chat.id)) ? [] : left;
}

/** Returns the chat with abandoned answers marked as interrupted, except those that will be continued. */
export async function withoutLeftovers(chat, continued = []) {
  const left = Object.values(chat.messages).filter((each) => each.state === "writing" && !continued.includes(each));
  if (!left.length || (await isClaimed(chat.id))) return chat;
  return left.reduce((each, { id }) => changeMessage(each, id, { state: "interrupted", error: CLOSED }), chat);
}

async function isClaimed(id) {
  const { held } = (await navigator.locks?.query()) ?? { held: [] };
  return held.some((lock) => lock.name === name(id));
}

function name(id) {
  return `corral.chat.${id}`;
}
