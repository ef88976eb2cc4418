// Answers that survive a lost connection: the server keeps their streams, and with `--journal` also across restarts.

import { ServerError, ask, events } from "./api.js";

const RETRY_MS = 1000;
const MAX_REFUSED = 600; // a server may take so long to load its model

/** The server has forgotten a stream: it was started again, and has no journal of it. */
export const FORGOTTEN = "stream_forgotten";

/** Yields the events of a request; those of a durable one are continued wherever the connection is lost. `stream`: one that
 * was begun before, from its beginning. `onStream` gets the id of the stream; `onWait`: the connection is lost, and perhaps
 * the status of the server's answer. Throws ServerError, with the type `FORGOTTEN` for a stream that cannot be continued. */
export async function* lastingEvents(path, { json, stream = "", onStream = () => {}, onWait = () => {}, ...options }) {
  let id = stream;
  let offset = "0";
  const begin = (name) => {
    if (id || !name) return;
    id = name;
    onStream(id);
  };
  const onOpen = ({ headers }) => begin(headers.get("X-Conversation-Id"));
  let nRefused = 0; // in a row
  const onId = (text) => {
    const dot = text.lastIndexOf(".");
    begin(text.slice(0, Math.max(0, dot))); // the header is missing if the stream began before the model was loaded
    offset = text.slice(dot + 1);
    nRefused = 0;
  };
  for (;;) {
    let status;
    const { signal, isOld, release } = untilOnline(options.signal, () => Boolean(id));
    const place = `/v1/stream?conv_id=${encodeURIComponent(id)}&from=${offset}`;
    try {
      const common = { ...options, signal, onId };
      const isWhole = yield* id ? events(place, common) : events(path, { ...common, json, onOpen });
      if (isWhole || !id) return;
    } catch (error) {
      if (isOld()) continue;
      ({ status } = error);
      nRefused = status === 0 ? 0 : nRefused + 1;
      if (id && status === 404) throw new ServerError(status, error.message, "", FORGOTTEN);
      if (!id || !error.isPassing || nRefused > MAX_REFUSED) throw error;
    } finally {
      release();
    }
    onWait(status);
    await pause(options.signal);
  }
}

/** Ends an answer that would continue without its reader. */
export function endStream(id) {
  ask(`/v1/stream?conv_id=${encodeURIComponent(id)}`, { method: "DELETE" }).catch((error) => {
    if (!(error instanceof ServerError)) throw error; // it ends by itself some day
  });
}

/** Returns a signal that ends a connection also when the network is back, if another one `canFollow`: it may be dead without a
 * sign. `isOld`: that has happened. */
function untilOnline(stopped, canFollow) {
  const controller = new AbortController();
  const end = () => controller.abort();
  const renew = () => canFollow() && end();
  addEventListener("online", renew);
  stopped?.addEventListener("abort", end, { once: true });
  if (stopped?.aborted) end();
  const release = () => {
    removeEventListener("online", renew);
    stopped?.removeEventListener("abort", end);
  };
  return { signal: controller.signal, isOld: () => controller.signal.aborted && !stopped?.aborted, release };
}

function pause(signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(new DOMException("stopped", "AbortError"));
    if (signal?.aborted) return stop();
    signal?.addEventListener("abort", stop, { once: true });
    return setTimeout(resolve, RETRY_MS);
  });
}
