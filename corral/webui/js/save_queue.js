// Orders writes: those of one chat run in sequence, and of several waiting ones only the newest runs.

import { t } from "./text.js";

/** The chat was changed elsewhere: `chat` is the stored version, null if it was removed. */
export class Conflict extends Error {
  constructor(chat) {
    super(chat ? t("app.changedElsewhere") : t("app.deletedElsewhere"));
    this.name = "Conflict";
    this.chat = chat;
  }
}

export class SaveQueue {
  #put;
  #last = new Map(); // the last operation on a chat, by id
  #waiting = new Map(); // saves that have not started
  #lines = new Map(); // successive revisions written here

  /** `put(chat, revision)` replaces that revision, undefined for a new chat, and returns the stored chat; throws
   * Conflict. */
  constructor(put) {
    this.#put = put;
  }

  /** Saves the chat, or a newer version of it, and returns it. A revision that this queue itself has replaced is not a
   * conflict, so callers need not wait for one save before the next. */
  save(chat) {
    const waiting = this.#waiting.get(chat.id);
    if (waiting && waiting.chat.revision === chat.revision) {
      waiting.chat = chat;
      return waiting.done;
    }
    const entry = { chat };
    this.#waiting.set(chat.id, entry);
    entry.done = this.run(chat.id, () => {
      if (this.#waiting.get(chat.id) === entry) this.#waiting.delete(chat.id);
      return this.#write(entry.chat);
    });
    return entry.done;
  }

  /** Runs an operation on a chat after all previous ones. */
  run(id, work) {
    const before = this.#last.get(id) ?? Promise.resolve();
    const done = before.then(work, work);
    const end = () => this.#last.get(id) === done && this.#last.delete(id);
    this.#last.set(id, done);
    done.then(end, end);
    return done;
  }

  /** Forgets the revisions of a chat that was removed. */
  forget(id) {
    this.#lines.delete(id);
  }

  async #write(chat) {
    let line = this.#lines.get(chat.id);
    if (!line?.revisions.has(chat.revision)) line = { revisions: new Set([chat.revision]), latest: chat.revision };
    try {
      const saved = await this.#put(chat, line.latest);
      line.latest = saved.revision;
      line.revisions.add(saved.revision);
      this.#lines.set(chat.id, line);
      return saved;
    } catch (error) {
      if (error instanceof Conflict) this.forget(chat.id);
      throw error;
    }
  }
}
