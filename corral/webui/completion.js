// Completions for your own pages and programs. No dependencies; runs in browsers and in Node 18.
//
//    import { llama } from "/completion.js";
//
//    for await (const chunk of llama("Tell me a joke", { n_predict: 100 })) {
//      document.body.append(chunk.data.content);
//    }
//
// `params` are the fields of POST /completion, with these defaults and `api_key` for a server that has keys.
// `config` has:
//    controller   an AbortController, to stop the request
//    api_url      the server, as "http://127.0.0.1:8080" (default: where the page came from; `url_prefix` too)
//    endpoint     another path than "/completion"
// Error responses are thrown as an Error with `message`, `status` and `type`.

const DEFAULTS = { stream: true, n_predict: 500, temperature: 0.2, stop: ["</s>"] };

/** Yields chunks, `{ data: { content, stop, ... } }`, and returns the whole text. Leaving the loop cancels the
 * request. */
export async function* llama(prompt, params = {}, config = {}) {
  const { api_key: key, ...fields } = params;
  const signal = config.controller?.signal;
  const response = await request(config, config.endpoint || "/completion", key, {
    method: "POST",
    body: JSON.stringify({ ...DEFAULTS, ...fields, prompt }),
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    signal,
  });
  let content = "";
  for await (const chunk of chunksOf(response)) {
    signal?.throwIfAborted(); // even if more chunks have arrived
    content += textOf(chunk.data);
    yield chunk;
  }
  return content;
}

/** The same as events: `message` for each chunk, `generation_settings` and `timings` once they are known, finally
 * `done` with the `content`, or `error`. The data is in the event's `detail`. */
export function llamaEventTarget(prompt, params = {}, config = {}) {
  const target = new EventTarget();
  const tell = (type, detail) => target.dispatchEvent(new DetailEvent(type, detail));
  follow(prompt, params, config, ({ data }) => {
    tell("message", data);
    if (data.generation_settings) tell("generation_settings", data.generation_settings);
    if (data.timings) tell("timings", data.timings);
  }).then(
    (content) => tell("done", { content }),
    (error) => tell("error", error),
  );
  return target;
}

/** Returns the whole text. */
export function llamaPromise(prompt, params = {}, config = {}) {
  return follow(prompt, params, config, () => {});
}

/** Calls a callback with every chunk; the prompt is one of the `params`. */
export async function llamaComplete(params, controller, callback) {
  await follow(params.prompt, params, { controller }, callback);
}

/** Returns the server's default generation settings, including `n_ctx`; `config` may have an `api_key`. */
export async function llamaModelInfo(config = {}) {
  const signal = config.controller?.signal;
  const response = await request(config, "/props", config.api_key, { signal });
  return (await response.json()).default_generation_settings;
}

class DetailEvent extends Event {
  constructor(type, detail) {
    super(type);
    this.detail = detail;
  }
}

async function follow(prompt, params, config, callback) {
  const chunks = llama(prompt, params, config);
  for (;;) {
    const { value, done } = await chunks.next();
    if (done) return value;
    callback(value);
  }
}

async function request(config, path, key, { headers = {}, ...options }) {
  if (key) headers = { ...headers, Authorization: `Bearer ${bytesOf(key)}` };
  const response = await fetch((config.api_url || config.url_prefix || "") + path, { ...options, headers });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw errorOf(body.error ?? {}, response.status);
}

/** Encodes text as UTF-8 bytes for a header. */
function bytesOf(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

/** Yields the events of a stream, or the single response without streaming. */
async function* chunksOf(response) {
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    yield { data: await response.json() };
    return;
  }
  for await (const { error, data, ...others } of eventsOf(response.body)) {
    if (error !== undefined) throw errorOf(JSON.parse(error));
    if (data === "[DONE]") return;
    const parsed = JSON.parse(data);
    if (parsed.error) throw errorOf(parsed.error);
    yield { ...others, data: parsed };
  }
}

/** Parses server-sent events, however the bytes were split. */
async function* eventsOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let event = {};
  try {
    for (let isEnd = false; !isEnd; ) {
      const { value, done } = await reader.read();
      isEnd = done;
      rest += done ? `${decoder.decode()}\n\n` : decoder.decode(value, { stream: true });
      const lines = rest.split(/\r\n|\n|\r(?!$)/); // a final \r may be half of \r\n
      rest = lines.pop();
      for (const line of lines) {
        if (line) addField(event, line);
        else {
          if ("data" in event || "error" in event) yield event;
          event = {};
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // cancels the request if the caller stops early
  }
}

/** Adds a field. A line without a name is a comment; several `data` fields are lines of one text. */
function addField(event, line) {
  const [, name, value] = line.match(/^([^:]*):? ?(.*)$/s);
  if (name === "data" && "data" in event) event.data += `\n${value}`;
  else if (name) event[name] = value;
}

function textOf(data) {
  const choice = data.choices?.[0];
  return data.content ?? choice?.text ?? choice?.delta?.content ?? choice?.message?.content ?? "";
}

function errorOf({ message, type, code }, status = code) {
  const error = new Error(message ?? `the server returned status ${status}`);
  return Object.assign(error, { status, type });
}
