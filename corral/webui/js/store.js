// Chats stored in this browser, shared by its tabs.

import { Memory, openDatabase } from "./records.js";
import { Conflict, SaveQueue } from "./save_queue.js";
import { newId, titleOf } from "./tree.js";

export { Conflict } from "./save_queue.js";

const CHANNEL = "corral.chats";
const MAX_TITLE_CHARS = 1000;

/** Opens a store in the browser, or in memory (`isLasting` false) if the browser does not allow it. */
export async function openLocalStore() {
  try {
    return new LocalStore(await openDatabase());
  } catch {
    return new LocalStore(new Memory());
  }
}

class LocalStore {
  kind = "browser";
  #records;
  #queue = new SaveQueue((chat, revision) => this.#put(chat, revision));
  #channel = new BroadcastChannel(CHANNEL);
  #listeners = new Set();
  #index = null; // of the texts, from the first search on
  #heads = null; // for searches, until something changes

  constructor(records) {
    this.#records = records;
    this.#channel.onmessage = ({ data }) => {
      this.#heads = null;
      for (const listener of this.#listeners) listener([data]);
    };
  }

  get isLasting() {
    return this.#records.isLasting;
  }

  async list() {
    return newestFirst(await this.#records.heads());
  }

  /** `show` gets what was found so far while chats are read. */
  async search(text, show = () => {}) {
    const heads = await (this.#heads ??= this.list().catch((error) => this.#forgetHeads(error)));
    if (!heads.length) return [];
    this.#index ??= import("./text_index.js").then(({ TextIndex }) => new TextIndex(this.#records));
    return (await this.#index).search(text, heads, show);
  }

  load(id) {
    return this.#records.get(id);
  }

  /** Saves the chat and returns it with its new revision. Throws Conflict if another tab has changed it. */
  save(chat, updatedAt = Date.now()) {
    return this.#queue.save({ ...named(chat), updatedAt });
  }

  remove(id) {
    return this.#queue.run(id, async () => {
      this.#queue.forget(id);
      await this.#records.remove(id);
      this.#tell(id);
    });
  }

  /** Calls the listener with the ids of chats that another tab has changed; returns a function that stops it. */
  onChange(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async #put(chat, revision) {
    const saved = { ...chat, revision: newId() };
    if (!(await this.#records.put(saved, revision))) throw new Conflict(await this.load(chat.id));
    this.#tell(chat.id);
    return saved;
  }

  #forgetHeads(error) {
    this.#heads = null;
    throw error;
  }

  #tell(id) {
    this.#heads = null;
    if (this.isLasting) this.#channel.postMessage(id);
  }
}

/** Returns the chat with a title for lists: its own, or its first words. */
export function named(chat) {
  return { ...chat, title: (chat.leaf ? titleOf(chat) : chat.title).slice(0, MAX_TITLE_CHARS) };
}

export function newestFirst(heads) {
  return heads.sort((a, b) => b.updatedAt - a.updatedAt || (a.id < b.id ? -1 : 1));
}
