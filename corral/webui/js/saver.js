// Saves chats often enough that little is lost, and seldom enough that nobody notices. One that somebody else has
// saved in between is merged with theirs.

import { Conflict } from "./store.js";
import { merge } from "./tree.js";

const PAUSE_MS = 1000;

export class Saver {
  #store;
  #onSaved;
  #onError;
  #waiting = new Map(); // the newest version of chats, by id
  #timers = new Map();

  constructor(store, onSaved, onError) {
    this.#store = store;
    this.#onSaved = onSaved;
    this.#onError = onError;
    addEventListener("pagehide", () => this.flush());
  }

  /** Soon, or at once. */
  save(chat, isUrgent = false) {
    this.#waiting.set(chat.id, chat);
    if (isUrgent) return this.#write(chat.id);
    if (!this.#timers.has(chat.id)) {
      this.#timers.set(chat.id, setTimeout(() => this.#write(chat.id), PAUSE_MS));
    }
    return null;
  }

  flush() {
    for (const id of this.#waiting.keys()) this.#write(id);
  }

  /** What waits to be written is not. */
  forget(id) {
    clearTimeout(this.#timers.get(id));
    this.#timers.delete(id);
    this.#waiting.delete(id);
  }

  async #write(id) {
    const chat = this.#waiting.get(id);
    if (!chat) return;
    this.forget(id);
    try {
      const [saved, theirs] = await this.#put(chat);
      const newer = this.#waiting.get(id);
      if (newer) this.#waiting.set(id, { ...(theirs ? merge(newer, theirs) : newer), revision: saved.revision });
      this.#onSaved(saved, theirs);
    } catch (error) {
      if (!this.#waiting.has(id)) this.#waiting.set(id, chat);
      this.#onError(`This chat could not be saved: ${error.message}`);
    }
  }

  /** What was saved, and what of somebody else's is in it; null: nothing. */
  async #put(chat) {
    try {
      return [await this.#store.save(chat), null];
    } catch (error) {
      if (!(error instanceof Conflict)) throw error;
      const theirs = error.chat;
      if (!theirs) return this.#put({ ...chat, revision: undefined });
      const [saved, more] = await this.#put({ ...merge(chat, theirs), revision: theirs.revision });
      return [saved, more ? merge(more, theirs) : theirs];
    }
  }
}
