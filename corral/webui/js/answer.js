// Answers of the model: the request, and the messages that grow from its stream.

import { ServerError } from "./api.js";
import { lastingEvents } from "./durable.js";
import { requestFields } from "./settings.js";
import { tokensOf } from "./token.js";
import { percent, t } from "./text.js";

const STATES = {
  unloaded: t("state.unloaded"),
  downloading: t("state.downloading"),
  loading: t("state.loading"),
  loaded: t("state.loaded"),
  sleeping: t("state.sleeping"),
  failed: t("state.failed"),
};

/** Yields the messages as they grow. `path`: the messages before them; `begun`: their beginnings, of which a single one is
 * continued. `onProgress` gets the queue position and the progress of the prompt, and the indices of the answers if it is not
 * about all. `tools`: besides those of the settings.
 * `model`: not the page's. `isDurable`: it continues without this page. Throws ServerError. */
export async function* streamAnswers(chat, path, begun, { model, tools = [], isDurable = false, ...options }) {
  const n = begun.length > 1 ? { n: begun.length } : {};
  const json = { ...requestOf(chat, path, begun[0], tools), ...n, ...(isDurable ? { durable: true } : {}) };
  const query = model ? `?model=${encodeURIComponent(model)}` : "";
  yield* growAnswers("/v1/chat/completions" + query, begun, { json, ...options });
}

/** Yields the messages of an answer that another page has begun. */
export function followAnswers(stream, begun, options) {
  return growAnswers("", begun, { stream, ...options });
}

/** `onAnswer` gets the server's id of the answer, `onStream` that of its stream; `onLost`: the server cannot be reached. */
async function* growAnswers(path, begun, { onProgress, onAnswer = () => {}, onLost = () => {}, ...options }) {
  const messages = begun.map((each) => ({ ...each }));
  const onComment = (text) => text && onProgress({ waiting: placeText(text) }, text.match(/, choices ([\d ]+)$/)?.[1].split(" "));
  const thinking = new Map(); // when each began to reason
  const onWait = (status) => {
    onProgress({ waiting: t("message.connectionLost") });
    if (status === 0) onLost();
  };
  let id = "";
  for await (const chunk of lastingEvents(path, { onComment, onWait, ...options })) {
    if (chunk.model_progress) onProgress({ waiting: stateText(chunk.model_progress) });
    if (chunk.prompt_progress) onProgress({ prompt: chunk.prompt_progress });
    if (chunk.id && chunk.id !== id) onAnswer((id = chunk.id));
    const at = chunk.choices?.[0]?.index ?? 0;
    messages[at] = fold(messages[at], chunk);
    if (!options.stream) timeThoughts(messages, at, thinking);
    yield [...messages];
  }
  if (messages.some(({ finish }) => !finish)) throw new ServerError(0, t("app.connectionLost"));
}

/** Notes how long a message has reasoned, once it says something. */
function timeThoughts(messages, at, thinking) {
  const { reasoning, content, start = 0, toolCalls, ms } = messages[at];
  if (!reasoning || ms !== undefined) return;
  if (!thinking.has(at)) thinking.set(at, performance.now());
  if (content.length > start || toolCalls) messages[at].ms = Math.round(performance.now() - thinking.get(at));
}

/** Returns what the server says of a request that waits, in the user's language. */
function placeText(comment) {
  const place = comment.match(/^queue position (\d+)/)?.[1];
  return place ? t("message.place", { n: Number(place) }) : comment;
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

/** Returns the state of a model that is not loaded yet, as text. */
export function stateText(status) {
  return t("models.is", { state: progressText(status) });
}

/** The same without saying that it is a model. */
export function progressText({ value, progress, queue_position: place }) {
  const state = STATES[value] ?? value;
  if (place) return t("models.queued", { state, n: place });
  return progress ? t("models.progress", { state, percent: percent(progress.value) }) : state;
}

function requestOf(chat, path, begun, tools) {
  const messages = path.map(wireMessage);
  if (begun.content) messages.push({ role: "assistant", content: begun.content });
  if (chat.system.trim()) messages.unshift({ role: "system", content: chat.system });
  const fields = requestFields(chat.settings);
  return {
    messages,
    ...fields,
    ...(tools.length ? { tools: [...(fields.tools ?? []), ...tools] } : {}),
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    return_progress: true,
  };
}

/** Returns a message in the format of the API. Files come first: a prompt that begins with the same ones is evaluated
 * once, whatever is asked about them. */
export function wireMessage({ role, content, images = [], files = [], audio = [], toolCalls = [], toolCallId }) {
  if (role === "tool") return { role, content, tool_call_id: toolCallId };
  if (toolCalls.length) {
    const calls = toolCalls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    return { role, content: content || null, tool_calls: calls };
  }
  const shown = files.map(({ name, text }) => `--- File: ${name} ---\n${text}\n\n`).join("");
  if (images.length + audio.length === 0) return { role, content: shown + content };
  const media = [
    ...images.map((url) => ({ type: "image_url", image_url: { url } })),
    ...audio.map(({ url }) => ({ type: "input_audio", input_audio: audioOf(url) })),
  ];
  return { role, content: [...textPart(shown), ...media, ...textPart(content)] };
}

function textPart(text) {
  return text ? [{ type: "text", text }] : [];
}

/** `data:audio/wav;base64,…` in the format of the API. */
function audioOf(url) {
  const [, format, data] = url.match(/^data:audio\/(\w+);base64,(.*)$/s);
  return { data, format };
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
