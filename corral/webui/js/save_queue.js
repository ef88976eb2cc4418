// The order of writes: those of one chat never overtake each other, and of several that wait only the newest is done.

/** Somebody else has saved the chat in between: `chat` is what is there now, null if it was removed. */
export class Conflict extends Error {
  constructor(chat) {
    super(chat ? "This chat was changed elsewhere." : "This chat was deleted elsewhere.");
    this.name = "Conflict";
    this.chat = chat;
  }
}

export class SaveQueue {
  #put;
  #last = new Map(); // what happens to a chat last, by id
  #waiting = new Map(); // saves that have not begun
  #lines = new Map(); // revisions that followed each other here

  /** `put(chat, revision)` writes a chat over that revision, undefined for a new one, and returns what is there then;
   * throws Conflict. */
  constructor(put) {
    this.#put = put;
  }

  /** The chat as it is saved, or a newer version of it. A revision that this queue itself has replaced is no conflict,
   * so that nobody has to wait for one save before the next. */
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

  /** Does something to a chat when everything before is done. */
  run(id, work) {
    const before = this.#last.get(id) ?? Promise.resolve();
    const done = before.then(work, work);
    const end = () => this.#last.get(id) === done && this.#last.delete(id);
    this.#last.set(id, done);
    done.then(end, end);
    return done;
  }

  /** From now on this is another chat. */
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
