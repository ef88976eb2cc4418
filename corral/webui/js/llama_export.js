// Converts conversations exported by llama-server's page to chats, which are not validated yet.

import { list, object, text } from "./chat_check.js";
import { newId } from "./tree.js";

const SYSTEM = "system";
const ROLES = ["user", "assistant", "tool"];

/** `{conv, messages}`. Throws Error. */
export function chatOfLlama(value) {
  const { conv, messages } = object(value, "chat");
  const { name = "", lastModified, currNode } = object(conv, "conv");
  const all = list(messages, "messages").map((message) => object(message, "messages"));
  const kept = all.filter(({ type, role }) => type !== "root" && ROLES.includes(role));
  const ids = new Map(kept.map(({ id }) => [key(id), newId()]));
  const times = all.map(({ timestamp }) => timestamp).filter(Number.isSafeInteger);
  const parents = parentsOf(all, ids);
  return {
    id: newId(),
    title: String(name),
    createdAt: times.length ? times.reduce((a, b) => Math.min(a, b)) : (lastModified ?? 0),
    updatedAt: lastModified ?? 0,
    system: all.find(({ type, role }) => type !== "root" && role === SYSTEM)?.content ?? "",
    leaf: ids.get(key(currNode)) ?? ids.get(key(kept.at(-1)?.id)) ?? null,
    messages: Object.fromEntries(kept.map((message) => [ids.get(key(message.id)), messageOf(message, parents, ids)])),
  };
}

function messageOf(message, parents, ids) {
  const { reasoningContent, thinking, extra = [], toolCalls, toolCallId, timings } = message;
  const extras = list(extra ?? [], "extra").map((each) => object(each, "extra"));
  const texts = [...extras.filter(isText).map(textOf), text(message.content ?? "", "content")];
  return {
    id: ids.get(key(message.id)),
    parent: parents.get(key(message.id)),
    role: message.role,
    content: texts.filter(Boolean).join("\n\n"),
    createdAt: message.timestamp,
    reasoning: reasoningContent || thinking || undefined,
    images: imagesOf(extras),
    toolCalls: callsOf(toolCalls),
    toolCallId,
    timings,
  };
}

/** Returns the parent of each message, without the root and system prompts. */
function parentsOf(all, ids) {
  const direct = new Map(all.map(({ id, parent }) => [key(id), key(parent)]));
  const found = new Map();
  for (const start of direct.keys()) {
    const passed = [];
    let at = start;
    while (direct.has(at) && !found.has(at)) {
      found.set(at, null); // in case of a cycle
      passed.push(at);
      if (ids.has(direct.get(at))) break;
      at = direct.get(at);
    }
    const parent = ids.get(direct.get(at)) ?? found.get(at) ?? null;
    for (const id of passed) found.set(id, parent);
  }
  return found;
}

function isText({ type, content }) {
  return /^(text|pdf|context)/i.test(type) && typeof content === "string";
}

function textOf({ name, content }) {
  return `${name}:\n\n${content}`;
}

function imagesOf(extras) {
  const urls = extras.filter(({ type }) => /^image/i.test(type)).map(({ base64Url }) => base64Url);
  return urls.length ? urls : undefined;
}

/** There they are JSON in a string. */
function callsOf(given) {
  if (!given) return undefined;
  const calls = typeof given === "string" ? JSON.parse(given) : given;
  const named = list(calls, "toolCalls").map((call) => object(call, "toolCalls"));
  return named.map(({ id = "", function: called }) => ({ id, name: called?.name, arguments: called?.arguments ?? "" }));
}

/** Older versions number their messages. */
function key(id) {
  return String(id);
}
