// Answers that survive a lost connection: the server keeps their streams, and with `--journal` also across restarts.

import { ServerError, ask, events } from "./api.js";

const RETRY_MS = 1000;
const MAX_REFUSED = 600; // a server may take so long to load its model
const PASSING = [0, 502, 503, 504]; // the network, a proxy, or a server that starts

/** Yields the events of a request; those of a durable one are continued wherever the connection is lost. `stream`: one that
 * was begun before, from its beginning. `onStream` gets the id of the stream; `onWait`: the connection is lost. */
export async function* lastingEvents(path, { json, stream = "", onStream = () => {}, onWait = () => {}, ...options }) {
  let id = stream;
  let offset = "0";
  const onOpen = ({ headers }) => {
    if (id || !headers.has("X-Conversation-Id")) return;
    id = headers.get("X-Conversation-Id");
    onStream(id);
  };
  let nRefused = 0; // in a row
  const onId = (text) => {
    offset = text.slice(text.lastIndexOf(".") + 1);
    nRefused = 0;
  };
  for (;;) {
    try {
      const place = `/v1/stream?conv_id=${encodeURIComponent(id)}&from=${offset}`;
      const isWhole = yield* id ? events(place, { ...options, onId }) : events(path, { ...options, json, onOpen, onId });
      if (isWhole || !id) return;
    } catch (error) {
      nRefused = error.status === 0 ? 0 : nRefused + 1;
      if (!id || !PASSING.includes(error.status) || nRefused > MAX_REFUSED) throw error;
    }
    onWait();
    await pause(options.signal);
  }
}

/** Ends an answer that would continue without its reader. */
export function endStream(id) {
  ask(`/v1/stream?conv_id=${encodeURIComponent(id)}`, { method: "DELETE" }).catch((error) => {
    if (!(error instanceof ServerError)) throw error; // it ends by itself some day
  });
}

function pause(signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(new DOMException("stopped", "AbortError"));
    if (signal?.aborted) return stop();
    signal?.addEventListener("abort", stop, { once: true });
    return setTimeout(resolve, RETRY_MS);
  });
}
