// A conversation as a tree: every message has a parent, and the chat names the leaf that is shown.
// All functions are pure: they return a new chat.

import { t } from "./text.js";

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newChat(system = "", settings = {}) {
  const now = Date.now();
  return { id: newId(), title: "", createdAt: now, updatedAt: now, system, settings, leaf: null, messages: {} };
}

/** Returns the messages from the first one to the leaf that is shown. */
export function pathOf(chat) {
  return ancestry(chat, chat.leaf);
}

/** Returns the messages from the first one to this one. */
export function ancestry(chat, id) {
  const path = [];
  for (let at = id; at !== null && chat.messages[at]; at = chat.messages[at].parent) path.push(chat.messages[at]);
  return path.reverse();
}

/** Adds a message after `parent`, and shows it. */
export function addMessage(chat, parent, fields) {
  const message = { id: newId(), parent, content: "", state: "done", createdAt: Date.now(), ...fields };
  return { ...chat, leaf: message.id, messages: { ...chat.messages, [message.id]: message } };
}

export function changeMessage(chat, id, changes) {
  return { ...chat, messages: { ...chat.messages, [id]: { ...chat.messages[id], ...changes } } };
}

/** Changes several messages, each named by its `id`. */
export function changeMessages(chat, changes) {
  return changes.reduce((each, fields) => changeMessage(each, fields.id, fields), chat);
}

/** Returns a function from a message to the ids of its siblings and itself, oldest first. */
export function siblings(chat) {
  const byParent = new Map();
  for (const message of Object.values(chat.messages).sort(byAge)) {
    if (!byParent.has(message.parent)) byParent.set(message.parent, []);
    byParent.get(message.parent).push(message.id);
  }
  return (message) => byParent.get(message.parent);
}

/** Shows the branch that begins with this message, up to its latest leaf. */
export function showBranch(chat, id) {
  let leaf = id;
  for (let children = childrenOf(chat, leaf); children.length; children = childrenOf(chat, leaf)) {
    leaf = children.at(-1).id;
  }
  return { ...chat, leaf };
}

/** Removes a message and its descendants; shows a sibling instead, or the parent. */
export function removeBranch(chat, id) {
  const { parent } = chat.messages[id];
  const gone = new Set();
  for (const message of Object.values(chat.messages)) {
    if (ancestry(chat, message.id).some((each) => each.id === id)) gone.add(message.id);
  }
  const messages = Object.fromEntries(Object.entries(chat.messages).filter(([each]) => !gone.has(each)));
  const left = { ...chat, messages };
  const sibling = childrenOf(left, parent).at(-1);
  if (!gone.has(chat.leaf)) return left;
  return sibling ? showBranch(left, sibling.id) : { ...left, leaf: parent };
}

/** Merges two versions: all messages, each in its longer version, and our branch extended by theirs. */
export function merge(ours, theirs) {
  const messages = { ...ours.messages };
  for (const [id, message] of Object.entries(theirs.messages)) {
    if (!messages[id] || isFurther(message, messages[id])) messages[id] = message;
  }
  const merged = { ...ours, messages };
  const goesOn = ancestry(merged, theirs.leaf).some(({ id }) => id === ours.leaf);
  return goesOn ? { ...merged, leaf: theirs.leaf } : merged;
}

export function titleOf(chat) {
  if (chat.title) return chat.title;
  const first = pathOf(chat).find((message) => message.role === "user");
  const text = (first?.content ?? "").trim().replace(/\s+/g, " ");
  if (!text) return first?.files?.[0]?.name ?? (first?.images?.length ? t("thread.image") : t("sidebar.newChat"));
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

function childrenOf(chat, parent) {
  return Object.values(chat.messages)
    .filter((message) => message.parent === parent)
    .sort(byAge);
}

function isFurther(a, b) {
  const [sizeOfA, sizeOfB] = [a, b].map(({ content, reasoning = "" }) => content.length + reasoning.length);
  return sizeOfA === sizeOfB ? b.state === "writing" && a.state !== "writing" : sizeOfA > sizeOfB;
}

function byAge(a, b) {
  return a.createdAt - b.createdAt;
}
