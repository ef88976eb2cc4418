// The texts of the chats in this browser, kept in memory from the first search on: reading all chats takes seconds.

const MANY = 50; // changed chats: reading all of them is faster then
const BEFORE = 30; // characters of a snippet before the text that was searched for
const AFTER = 90;

export class TextIndex {
  #records;
  #known = new Map(); // { revision, lower, text } by id; each text ends with \0
  #reading = Promise.resolve();

  constructor(records) {
    this.#records = records;
  }

  /** Returns those of the chats, as in the list, that contain the text in title or messages, ignoring case, each with a
   * `snippet`: the words around its first place in a message. */
  async search(text, heads) {
    this.#reading = this.#reading.then(() => this.#read(heads)).catch(() => this.#known.clear());
    await this.#reading;
    const wanted = text.toLowerCase();
    const found = heads.filter(({ id }) => this.#known.get(id)?.lower.includes(wanted));
    return found.map((head) => ({ ...head, snippet: snippetOf(this.#known.get(head.id), wanted) }));
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
    const text = [title, ...contents, ""].join("\0");
    const lower = text.toLowerCase();
    const isSame = lower.length === text.length; // otherwise places would be others
    this.#known.set(id, { revision, lower, text: isSame ? text : lower });
  }
}

function snippetOf({ lower, text }, wanted) {
  const at = lower.indexOf(wanted, text.indexOf("\0"));
  if (at < 0) return "";
  const begin = Math.max(text.lastIndexOf("\0", at) + 1, at - BEFORE);
  const end = Math.min(text.indexOf("\0", at), at + wanted.length + AFTER);
  const words = text.slice(begin, end).replace(/\s+/g, " ").trim();
  return (text[begin - 1] === "\0" ? "" : "…") + words + (text[end] === "\0" ? "" : "…");
}
