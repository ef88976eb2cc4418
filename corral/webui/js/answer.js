// Answers of the model: the request, and the messages that grow from its stream.

import { ServerError, events } from "./api.js";
import { requestFields } from "./settings.js";
import { tokensOf } from "./token.js";

/** Yields the messages as they grow. `path`: the messages before them; `begun`: their beginnings, of which a single one is
 * continued. `onProgress` gets the queue position and the progress of the prompt. Throws ServerError. */
export async function* streamAnswers(chat, path, begun, { signal, onProgress }) {
  const n = begun.length > 1 ? { n: begun.length } : {};
  const json = { ...requestOf(chat, path, begun[0]), ...n };
  const messages = begun.map((each) => ({ ...each }));
  for await (const chunk of events("/v1/chat/completions", { json, signal, onComment: (text) => onProgress({ waiting: text }) })) {
    if (chunk.prompt_progress) onProgress({ prompt: chunk.prompt_progress });
    const at = chunk.choices?.[0]?.index ?? 0;
    messages[at] = fold(messages[at], chunk);
    yield [...messages];
  }
  if (messages.some(({ finish }) => !finish)) throw new ServerError(0, "The connection was lost.");
}

/** Yields at most 30 values per second, and the last one. */
export async function* frames(values) {
  let shownAt = 0;
  let last;
  for await (const value of values) {
    last = value;
    if (performance.now() - shownAt < 33) continue;
    shownAt = performance.now();
    yield last;
    last = undefined;
  }
  if (last) yield last;
}

function requestOf(chat, path, begun) {
  const messages = path.map(wireMessage);
  if (begun.content) messages.push({ role: "assistant", content: begun.content });
  if (chat.system.trim()) messages.unshift({ role: "system", content: chat.system });
  return {
    messages,
    ...requestFields(chat.settings),
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    return_progress: true,
  };
}

/** Returns a message in the format of the API. */
export function wireMessage({ role, content, images = [], toolCalls = [], toolCallId }) {
  if (role === "tool") return { role, content, tool_call_id: toolCallId };
  if (toolCalls.length) {
    const calls = toolCalls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    return { role, content: content || null, tool_calls: calls };
  }
  if (!images.length) return { role, content };
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...parts, ...(content ? [{ type: "text", text: content }] : [])] };
}

/** Returns the message extended by a chunk. */
function fold(message, chunk) {
  const next = { ...message };
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.content) next.content += delta.content;
  if (delta.reasoning_content) next.reasoning = (next.reasoning ?? "") + delta.reasoning_content;
  if (delta.tool_calls) next.toolCalls = foldCalls(next.toolCalls ?? [], delta.tool_calls);
  if (choice?.finish_reason) next.finish = choice.finish_reason;
  if (choice?.logprobs) next.tokens = [...(next.tokens ?? []), ...tokensOf(chunk)];
  if (chunk.timings) next.timings = chunk.timings;
  if (chunk.usage) next.usage = chunk.usage;
  return next;
}

function foldCalls(calls, deltas) {
  const folded = [...calls];
  for (const { index, id, function: part = {} } of deltas) {
    const call = folded[index] ?? { id: "", name: "", arguments: "" };
    folded[index] = {
      id: call.id || id || "",
      name: call.name + (part.name ?? ""),
      arguments: call.arguments + (part.arguments ?? ""),
    };
  }
  return folded;
}
