// Validates chats from files and from the server. Only known fields are copied, each with its type. Errors name the chat and the field.

import { t } from "./more_text.js";

const ID = /^[0-9a-f]{32}$/;
const MESSAGE_ID = /^[0-9A-Za-z-]{1,64}$/;
const AUDIO = /^data:audio\/(?:wav|mp3|flac|ogg);base64,[A-Za-z0-9+/=]*$/;
const IMAGE = /^data:image\/[\w.+-]{1,64}[;,]/i;
const ROLES = ["user", "assistant", "tool"];
const STATES = ["done", "writing", "stopped", "failed", "interrupted"];
const MAX_TITLE_CHARS = 1000;
const MAX_FOLDER_CHARS = 100;
const MAX_MESSAGES = 100_000;
const MAX_DEPTH = 40;

/** Returns the chat with known fields only. Throws Error. */
export function checkedChat(value) {
  const given = object(value, "chat");
  const messages = checkedMessages(object(given.messages, "messages"));
  const leaf = (given.leaf ?? null) === null ? null : text(given.leaf, "leaf");
  if (leaf !== null && !Object.hasOwn(messages, leaf)) throw new Error(t("check.leaf"));
  return {
    id: checkedId(given.id, "id"),
    title: text(given.title ?? "", "title").slice(0, MAX_TITLE_CHARS),
    createdAt: time(given.createdAt, "createdAt"),
    updatedAt: time(given.updatedAt, "updatedAt"),
    system: text(given.system ?? "", "system"),
    settings: plain(object(given.settings ?? {}, "settings"), "settings"),
    leaf,
    messages,
    ...(given.pinned === true ? { pinned: true } : {}),
    ...(given.folder ? { folder: text(given.folder, "folder").slice(0, MAX_FOLDER_CHARS) } : {}),
  };
}

/** Returns a chat of the server, with what only chats in a store have. Throws Error. */
export function storedChat(value) {
  const { revision, toolsOn } = object(value, "chat");
  const tools = toolsOn ? { toolsOn: list(toolsOn, "toolsOn").map((each) => text(each, "toolsOn")) } : {};
  return { ...checkedChat(value), ...tools, revision: text(revision, "revision") };
}

function checkedMessages(given) {
  const ids = Object.keys(given);
  if (ids.length > MAX_MESSAGES) throw new Error(t("check.nMessages", { n: MAX_MESSAGES }));
  const messages = {};
  for (const id of ids) {
    if (!MESSAGE_ID.test(id)) throw new Error(t("check.messageId"));
    messages[id] = checkedMessage(object(given[id], "messages"), id);
  }
  for (const { parent } of Object.values(messages)) {
    if (parent !== null && !Object.hasOwn(messages, parent)) throw new Error(t("check.parent"));
  }
  checkTree(messages);
  return messages;
}

function checkedMessage(given, id) {
  if (given.id !== id) throw new Error(t("check.key"));
  if (!ROLES.includes(given.role)) throw new Error(t("check.role", { roles: ROLES.join(", ") }));
  const message = {
    id,
    parent: given.parent === null ? null : text(given.parent, "parent"),
    role: given.role,
    content: text(given.content, "content"),
    createdAt: time(given.createdAt ?? 0, "createdAt"),
    state: STATES.includes(given.state) ? given.state : "done",
  };
  for (const [name, check] of Object.entries(OPTIONAL)) {
    if (given[name] !== undefined && given[name] !== null) message[name] = check(given[name], name);
  }
  return message;
}

const OPTIONAL = {
  model: text,
  reasoning: text,
  images: (value, name) => list(value, name).map((url) => image(url, name)),
  files: (value, name) => list(value, name).map((each) => file(object(each, name), name)),
  audio: (value, name) => list(value, name).map((each) => audio(object(each, name), name)),
  toolCalls: (value, name) => list(value, name).map((call) => toolCall(object(call, name), name)),
  toolCallId: text,
  ms: time,
  isError: Boolean,
  error: text,
  remedies: (value, name) => list(value, name).map((each) => text(each, name)),
  finish: text,
  start: time,
  stream: (value, name) => stream(object(value, name), name),
  timings: (value, name) => plain(object(value, name), name),
  usage: (value, name) => plain(object(value, name), name),
  tokens: (value, name) => plain(list(value, name), name),
};

function toolCall({ id, name, arguments: given }, field) {
  return { id: text(id, field), name: text(name, field), arguments: text(given, field) };
}

function stream({ id, index, start = 0 }, field) {
  return { id: text(id, field), index: time(index, field), start: time(start, field) };
}

/** Checks that the messages form trees. */
function checkTree(messages) {
  const known = new Set();
  for (const start of Object.keys(messages)) {
    const path = new Set();
    for (let at = start; at !== null && !known.has(at); at = messages[at].parent) {
      if (path.has(at)) throw new Error(t("check.cycle"));
      path.add(at);
    }
    for (const id of path) known.add(id);
  }
}

function checkedId(value, name) {
  if (typeof value === "string" && ID.test(value)) return value;
  throw new Error(t("check.id", { field: name }));
}

export function object(value, name) {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) return value;
  throw new Error(t("check.object", { field: name }));
}

export function list(value, name) {
  if (Array.isArray(value)) return value;
  throw new Error(t("check.list", { field: name }));
}

export function text(value, name) {
  if (typeof value === "string") return value;
  throw new Error(t("check.string", { field: name }));
}

function time(value, name) {
  if (Number.isSafeInteger(value) && value >= 0) return value;
  throw new Error(t("check.time", { field: name }));
}

/** Accepts only data URLs, so that nothing is loaded from other hosts. */
function image(value, name) {
  if (typeof value === "string" && IMAGE.test(value)) return value;
  throw new Error(t("check.images", { field: name }));
}

function file({ name, text: content, nPages, nTokens, state }, field) {
  const numbers = Object.entries({ nPages, nTokens }).filter(([, n]) => Number.isSafeInteger(n) && n >= 0);
  const more = state === undefined ? {} : { state: text(state, field) };
  return { name: text(name, field), text: text(content, field), ...Object.fromEntries(numbers), ...more };
}

function audio({ name, url }, field) {
  if (typeof url === "string" && AUDIO.test(url)) return { name: text(name, field), url };
  throw new Error(t("check.audio", { field }));
}

/** Copies JSON, with limited depth and without `__proto__`. */
function plain(value, name, depth = 0) {
  if (depth > MAX_DEPTH) throw new Error(t("check.depth", { field: name }));
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map((item) => plain(item, name, depth + 1));
  const copy = {};
  for (const [key, item] of Object.entries(value)) {
    if (key === "__proto__") throw new Error(t("check.forbidden", { field: name }));
    copy[key] = plain(item, name, depth + 1);
  }
  return copy;
}
