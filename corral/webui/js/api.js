// Requests to the server of this page: API key, errors, streams.

import { listed, percent, t } from "./text.js";

const ROOT = new URL("..", import.meta.url).pathname.replace(/\/$/, ""); // of the API, under `--api-prefix`
const KEY = "corral.key";
const MODEL = "corral.model";
const PASSING = [0, 502, 503, 504];
const PATIENCE_MS = 10_000; // for requests that do not run the model

/** An error response of the server; `status` 0: there was no response. `type` and `details` are those of the API. */
export class ServerError extends Error {
  constructor(status, message, field = "", type = "", details = {}) {
    super(message);
    this.status = status;
    this.field = field;
    this.type = type;
    this.details = details;
  }

  get isUnreachable() {
    return this.status === 0;
  }

  /** Whether the same request may succeed later: the network, a proxy, or a server that starts. */
  get isPassing() {
    return PASSING.includes(this.status);
  }

  get wantsKey() {
    return this.status === 401;
  }

  /** The stage and progress of a server that is starting. */
  get stage() {
    const { stage, detail, progress } = this.details;
    return stage ? `${stage} ${detail}`.trim() + `: ${percent(progress)}` : "";
  }
}

export function apiKey() {
  return localStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  if (key) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
}

/** The model that requests are for, where the server has several; empty: it has one, or none is chosen. */
let model = "";

export function lastModel() {
  return localStorage.getItem(MODEL) ?? "";
}

export function setModel(name) {
  model = name;
  localStorage.setItem(MODEL, name);
}

function address(path) {
  const query = model && !/[?&]model=/.test(path) && `${path.includes("?") ? "&" : "?"}model=${encodeURIComponent(model)}`;
  return ROOT + path + (query || "");
}

/** Returns the JSON of a response; `options` as for `fetch`, with `json` for a body. Throws ServerError. */
export async function ask(path, options = {}) {
  const isQuick = options.json === undefined && options.body === undefined;
  const response = await send(path, isQuick ? { signal: AbortSignal.timeout(PATIENCE_MS), ...options } : options);
  try {
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    throw unlessAborted(error);
  }
}

/** Yields the parsed events of a stream; returns whether the last one has come. `onComment` gets its comments, `onOpen` the
 * response, `onId` the id of every event that was handled. Throws ServerError, also for an event that is an error. */
export async function* events(path, { onComment = () => {}, onOpen = () => {}, onId = () => {}, ...options } = {}) {
  const response = await send(path, options);
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    throw new ServerError(409, (await response.json()).message ?? t("message.noStream"));
  }
  onOpen(response);
  let id = "";
  for await (const line of lines(response.body)) {
    if (line.startsWith(":")) onComment(line.slice(1).trim());
    if (line.startsWith("id:")) id = line.slice(3).trim();
    if (!line.startsWith("data:")) continue;
    const text = line.slice(5).trim();
    if (text === "[DONE]") return true;
    const event = JSON.parse(text);
    if (event.error) throw errorOf(event.error.code, event);
    yield event;
    if (id) onId(id);
  }
  return false;
}

async function send(path, { json, headers = {}, ...options }) {
  const key = apiKey();
  if (key) headers = { ...headers, Authorization: `Bearer ${inBytes(key)}` };
  if (json !== undefined) {
    options = { method: "POST", ...options, body: JSON.stringify(json) };
    headers = { ...headers, "Content-Type": "application/json" };
  }
  let response;
  try {
    response = await fetch(address(path), { ...options, headers });
  } catch (error) {
    throw unlessAborted(error);
  }
  if (!response.ok) throw errorOf(response.status, await response.json().catch(() => ({})));
  return response;
}

/** Encodes text as UTF-8 bytes for a header. */
function inBytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const whole = (rest + value).split("\n");
      rest = whole.pop();
      yield* whole;
    }
  } catch (error) {
    throw unlessAborted(error);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function errorOf(status, body) {
  const { message, param, type, ...details } = body.error ?? {};
  const text = message ? withOperator(message) : t("server.status", { status: String(status) });
  return new ServerError(status, text, param ?? "", type ?? "", details);
}

/** A user of the page cannot change options of the server, so say who can. */
function withOperator(message) {
  const options = [...new Set(message.match(/(?<![\w-])--[a-z][\w-]*/g))];
  return options.length ? t("server.operator", { message, options: listed(options) }) : message;
}

/** Returns the error if the user stopped the request, otherwise a lost connection. */
function unlessAborted(error) {
  return error.name === "AbortError" ? error : new ServerError(0, t("common.unreachable"));
}
