// Merges the server's events to a snapshot of the last minute; reconnects while the page is open.

import { events, setApiKey } from "../api.js";

const PATH = "monitor/events";
const HISTORY_MS = 60_000;
const N_REQUESTS = 100;
const SILENT_MS = 10_000; // events come twice a second: after this silence, reconnect
const RETRY_MS = 1000;

export class Feed {
  /** link: connecting, open, down (unreachable), locked (requires a key), refused (with a `reason`). `lag`: how much
   * this computer's clock is ahead of the server's. `snapshot`: the last known state, or null. */
  state = { link: "connecting", reason: "", nTries: 0, lag: 0, snapshot: null, prompts: false };

  #model;
  #listeners = new Set();
  #controller = null;
  #retry = 0;

  /** `model`: one of many, empty: the only one. */
  constructor(model = "") {
    this.#model = model;
  }

  close() {
    clearTimeout(this.#retry);
    const controller = this.#controller;
    this.#controller = null;
    controller?.abort();
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  useKey(key) {
    setApiKey(key);
    return this.connect();
  }

  /** Sets whether to request the first words of this key's own prompts. */
  askForPrompts(prompts) {
    this.#set({ prompts });
    return this.connect();
  }

  async connect() {
    clearTimeout(this.#retry);
    this.#controller?.abort();
    const controller = (this.#controller = new AbortController());
    let watchdog = 0;
    try {
      const query = new URLSearchParams({ ...(this.#model && { model: this.#model }), ...(this.state.prompts && { prompts: "true" }) });
      for await (const event of events(query.size ? `${PATH}?${query}` : PATH, { signal: controller.signal })) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => controller.abort(), SILENT_MS);
        this.#take(event);
      }
      this.#lose("down", "");
    } catch (error) {
      if (controller !== this.#controller) return; // replaced by a newer connection
      if (error.wantsKey) this.#set({ link: "locked", nTries: this.state.nTries + 1 });
      else this.#lose(error.status >= 400 ? "refused" : "down", error.message);
    } finally {
      clearTimeout(watchdog);
    }
  }

  #lose(link, reason) {
    this.#set({ link, reason, prompts: link === "refused" ? false : this.state.prompts });
    this.#retry = setTimeout(() => this.connect(), RETRY_MS);
  }

  #take(event) {
    const whole = event.type === "state" ? event : merge(this.state.snapshot, event);
    this.#set({ link: "open", reason: "", lag: Date.now() - event.now, snapshot: trim(whole) });
  }

  #set(changes) {
    this.state = { ...this.state, ...changes };
    for (const listener of this.#listeners) listener(this.state);
  }
}

/** Merges changes into a snapshot; spans and requests are identified by number. */
function merge(snapshot, event) {
  return {
    ...snapshot,
    ...event,
    samples: [...snapshot.samples, ...event.samples],
    segments: replaced(snapshot.segments, event.segments),
    requests: replaced(snapshot.requests, event.requests),
  };
}

function replaced(known, changed) {
  if (!changed.length) return known;
  const all = new Map(known.map((each) => [each.n, each]));
  for (const each of changed) all.set(each.n, each);
  return [...all.values()].sort((a, b) => a.n - b.n);
}

function trim(snapshot) {
  const start = snapshot.now - HISTORY_MS;
  return {
    ...snapshot,
    samples: snapshot.samples.filter((sample) => sample.t >= start),
    segments: snapshot.segments.filter((segment) => segment.to === null || segment.to >= start),
    requests: snapshot.requests.slice(-N_REQUESTS),
  };
}
