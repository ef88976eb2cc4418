// Chats stored on the server (`--chats`), visible to every browser with the same key.

import { ask } from "./api.js";
import { Conflict, SaveQueue } from "./save_queue.js";
import { named } from "./store.js";

const POLL_MS = 5000;
const SHORT_CHARS = 10_000; // the browser still sends this much while the page is closed

export async function openRemoteStore() {
  return new RemoteStore();
}

class RemoteStore {
  kind = "server";
  isLasting = true;
  #queue = new SaveQueue((chat, revision) => this.#put(chat, revision));
  #watch = new Watch(() => ask("/chats"));

  async list() {
    return this.#watch.look();
  }

  search(text) {
    return text ? ask(`/chats?search=${encodeURIComponent(text)}`) : this.list();
  }

  /** Returns a chat as valid as those of files; null if there is none. Throws Error. */
  async load(id) {
    const { storedChat } = await import("./chat_check.js"); // not needed for a list
    try {
      return storedChat(await ask(address(id), { cache: "no-store" }));
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }

  /** Saves the chat and returns it with its new revision. Throws Conflict if another browser has changed it. */
  save(chat, updatedAt = Date.now()) {
    return this.#queue.save({ ...named(chat), updatedAt });
  }

  remove(id) {
    return this.#queue.run(id, async () => {
      this.#queue.forget(id);
      try {
        await ask(address(id), { method: "DELETE" });
      } catch (error) {
        if (error.status !== 404) throw error;
      }
      this.#watch.note(id, undefined);
    });
  }

  /** Calls the listener with the ids of chats that another browser has changed; returns a function that stops it. */
  onChange(listener) {
    return this.#watch.add(listener);
  }

  async #put({ revision: _, ...chat }, revision) {
    const body = wellFormed(chat);
    const condition = revision ? { "If-Match": `"${revision}"` } : { "If-None-Match": "*" };
    const headers = { "Content-Type": "application/json", ...condition };
    try {
      const saved = await ask(address(chat.id), { method: "PUT", body, headers, keepalive: body.length < SHORT_CHARS });
      this.#watch.note(chat.id, saved.revision);
      return { ...chat, ...saved };
    } catch (error) {
      if (error.status !== 409) throw error;
      throw new Conflict(await this.load(chat.id));
    }
  }
}

/** Polls the list of chats while the page is visible, and reports changes by others. */
class Watch {
  #list;
  #listeners = new Set();
  #seen = null; // revisions by id
  #noted = new Map(); // changes by this page during a poll
  #nLooking = 0;
  #timer = 0;
  #wake = () => document.visibilityState === "visible" && this.#poll();

  /** `list` returns the current chats, newest first. */
  constructor(list) {
    this.#list = list;
  }

  add(listener) {
    if (!this.#listeners.size) this.#start();
    this.#listeners.add(listener);
    return () => {
      this.#listeners.delete(listener);
      if (!this.#listeners.size) this.#stop();
    };
  }

  /** Records that this page itself has saved or removed a chat. */
  note(id, revision) {
    if (this.#nLooking) this.#noted.set(id, revision);
    this.#set(id, revision);
  }

  async look() {
    this.#nLooking += 1;
    try {
      const chats = await this.#list();
      this.#compare(new Map(chats.map(({ id, revision }) => [id, revision])));
      return chats;
    } finally {
      this.#nLooking -= 1;
      if (!this.#nLooking) this.#noted.clear();
    }
  }

  #compare(found) {
    const before = this.#seen;
    for (const [id, revision] of this.#noted) {
      if (revision) found.set(id, revision);
      else found.delete(id);
    }
    this.#seen = found;
    if (!before) return;
    const ids = new Set([...before.keys(), ...found.keys()]);
    const changed = [...ids].filter((id) => before.get(id) !== found.get(id));
    if (changed.length) for (const listener of this.#listeners) listener(changed);
  }

  #set(id, revision) {
    if (revision) this.#seen?.set(id, revision);
    else this.#seen?.delete(id);
  }

  #start() {
    this.#timer = setInterval(this.#wake, POLL_MS);
    addEventListener("focus", this.#wake);
    document.addEventListener("visibilitychange", this.#wake);
  }

  #stop() {
    clearInterval(this.#timer);
    removeEventListener("focus", this.#wake);
    document.removeEventListener("visibilitychange", this.#wake);
  }

  /** Ignores errors: the next poll tries again. */
  async #poll() {
    if (!this.#nLooking) await this.look().catch(() => {});
  }
}

function address(id) {
  return `/chats/${encodeURIComponent(id)}`;
}

/** Returns JSON without lone surrogates, which UTF-8 cannot encode. */
function wellFormed(chat) {
  const text = JSON.stringify(chat);
  if (!/\\ud[89a-f]/i.test(text)) return text;
  return JSON.stringify(chat, (_, value) => (typeof value === "string" ? value.toWellFormed() : value));
}
