// Saves chats once a second at most while they change. A chat that was changed elsewhere is merged. What a tab could
// not save when it was closed is saved when it is loaded again.

import { Conflict } from "./store.js";
import { merge } from "./tree.js";

const PAUSE_MS = 1000;
const RETRY_MS = 3000; // while the server is away

export class Saver {
  #store;
  #onSaved;
  #onError;
  #place; // key of unsaved chats
  #waiting = new Map(); // the newest version of each chat, by id
  #writing = new Map(); // those that the store is writing
  #timers = new Map();

  constructor(store, onSaved, onError) {
    this.#store = store;
    this.#onSaved = onSaved;
    this.#onError = onError;
    this.#place = `corral.unsaved.${store.kind}`;
    addEventListener("pagehide", () => this.#leave());
    addEventListener("pageshow", ({ persisted }) => persisted && sessionStorage.removeItem(this.#place));
  }

  /** Saves a chat soon, or immediately. */
  save(chat, isUrgent = false) {
    this.#waiting.set(chat.id, chat);
    if (isUrgent) return this.#write(chat.id);
    this.#writeSoon(chat.id, PAUSE_MS);
    return null;
  }

  /** Writes now what would be saved soon. */
  settle(id) {
    return this.#write(id);
  }

  #writeSoon(id, ms) {
    if (!this.#timers.has(id)) this.#timers.set(id, setTimeout(() => this.#write(id), ms));
  }

  /** Saves what this tab could not save when it was closed. */
  async recover() {
    const unsaved = JSON.parse(sessionStorage.getItem(this.#place) ?? "[]");
    sessionStorage.removeItem(this.#place);
    await Promise.all(unsaved.map((chat) => this.save(chat, true)));
  }

  /** The store may not finish while the page is closed, so keep unsaved chats in session storage. */
  #leave() {
    const unsaved = new Map([...this.#writing, ...this.#waiting]);
    try {
      if (unsaved.size) sessionStorage.setItem(this.#place, JSON.stringify([...unsaved.values()]));
    } catch {
      // too large: the version saved a second ago remains
    }
    for (const id of this.#waiting.keys()) this.#write(id);
  }

  /** Cancels pending writes of a chat. */
  forget(id) {
    clearTimeout(this.#timers.get(id));
    this.#timers.delete(id);
    this.#waiting.delete(id);
    this.#writing.delete(id);
  }

  async #write(id) {
    const chat = this.#waiting.get(id);
    if (!chat) return;
    this.forget(id);
    this.#writing.set(id, chat);
    try {
      const [saved, theirs] = await this.#put(chat);
      const newer = this.#waiting.get(id);
      if (newer) this.#waiting.set(id, { ...(theirs ? merge(newer, theirs) : newer), revision: saved.revision });
      this.#onSaved(saved, theirs);
    } catch (error) {
      if (!this.#waiting.has(id)) this.#waiting.set(id, chat);
      if (error.isPassing) this.#writeSoon(id, RETRY_MS);
      this.#onError(error);
    } finally {
      if (this.#writing.get(id) === chat) this.#writing.delete(id);
    }
  }

  /** Returns the saved chat, and the other version that was merged into it, or null. */
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
