// The texts of the chats in this browser, kept in memory from the first search on: reading all chats takes seconds.

const MANY = 50; // changed chats: reading all of them is faster then

export class TextIndex {
  #records;
  #known = new Map(); // { revision, text } by id
  #reading = Promise.resolve();

  constructor(records) {
    this.#records = records;
  }

  /** Returns those of the chats, as in the list, that contain the text in title or messages, ignoring case. */
  async search(text, heads) {
    this.#reading = this.#reading.then(() => this.#read(heads)).catch(() => this.#known.clear());
    await this.#reading;
    const wanted = text.toLowerCase();
    return heads.filter(({ id }) => this.#known.get(id)?.text.includes(wanted));
  }

  /** Reads what has changed since the last time. */
  async #read(heads) {
    const changed = heads.filter(({ id, revision }) => this.#known.get(id)?.revision !== revision);
    if (changed.length > MANY) return this.#records.each((chat) => this.#note(chat));
    for (const { id } of changed) {
      const chat = await this.#records.get(id);
      if (chat) this.#note(chat);
    }
    return undefined;
  }

  #note({ id, revision, title, messages }) {
    const contents = Object.values(messages).map(({ content }) => content);
    this.#known.set(id, { revision, text: [title, ...contents].join("\0").toLowerCase() });
  }
}
