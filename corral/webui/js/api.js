// The server this page came from: its key, its errors, its streams.

const KEY = "corral.key";
const PATIENCE_MS = 10_000; // with what is not the model's work

/** What the server answers instead of what was asked for; `status` 0: it did not answer at all. `type` and `details`
 * are the error's own, as in the API. */
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

  get wantsKey() {
    return this.status === 401;
  }

  /** Of a server that is starting: what it does, and how far that is. */
  get stage() {
    const { stage, detail, progress } = this.details;
    return stage ? `${stage} ${detail}`.trim() + `: ${Math.round(100 * progress)} %` : "";
  }
}

export function apiKey() {
  return localStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  if (key) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
}

/** JSON of the server; `options` as of `fetch`, with `json` for a body. Throws ServerError. */
export async function ask(path, options = {}) {
  const isQuick = options.json === undefined && options.body === undefined;
  const response = await send(path, isQuick ? { signal: AbortSignal.timeout(PATIENCE_MS), ...options } : options);
  try {
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    throw unlessAborted(error);
  }
}

/** The events of a stream, parsed, until the server has sent the last one; `onComment` gets the lines that are
 * none. Throws ServerError, also for an event that is an error. */
export async function* events(path, { onComment = () => {}, ...options } = {}) {
  const response = await send(path, options);
  for await (const line of lines(response.body)) {
    if (line.startsWith(":")) onComment(line.slice(1).trim());
    if (!line.startsWith("data:")) continue;
    const text = line.slice(5).trim();
    if (text === "[DONE]") return;
    const event = JSON.parse(text);
    if (event.error) throw errorOf(event.error.code, event);
    yield event;
  }
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
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw unlessAborted(error);
  }
  if (!response.ok) throw errorOf(response.status, await response.json().catch(() => ({})));
  return response;
}

/** The letters of a header are bytes: those of UTF-8. */
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
  const text = message ? withOperator(message) : `the server answered with status ${status}`;
  return new ServerError(status, text, param ?? "", type ?? "", details);
}

/** A person at the page cannot start the server with other options: say who can. */
function withOperator(message) {
  const [option] = message.match(/(?<![\w-])--[a-z][\w-]*/) ?? [];
  return option ? `${message} (${option} is an option of the server: its operator sets it)` : message;
}

/** A person stopped it, or the connection is lost. */
function unlessAborted(error) {
  return error.name === "AbortError" ? error : new ServerError(0, "The server cannot be reached.");
}
