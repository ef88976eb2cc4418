// The texts of the chats in this browser, kept in memory from the first search on: reading all chats takes long.

const BEFORE = 30; // characters of a snippet before the text that was searched for
const AFTER = 90;
const SHOW_MS = 100; // between two lists of what was found so far
const N_FIRST = 20; // so many fill the list: the others wait for the end

export class TextIndex {
  #records;
  #known = new Map(); // an Entry by id

  constructor(records) {
    this.#records = records;
  }

  /** Returns those of the chats, as in the list, that contain the text in title or messages, ignoring case, each with a
   * `snippet`: the words around its first place in a message. `show` gets what was found so far while chats are read. */
  async search(text, heads, show) {
    const wanted = patternOf(text);
    this.#read(heads);
    const found = [];
    const entries = heads.map(({ id }) => this.#known.get(id));
    let nShown = 0;
    let nextAt = 0;
    for (const [i, head] of heads.entries()) {
      const { texts, reading } = entries[i];
      if (!texts && nShown < N_FIRST && found.length > nShown && performance.now() >= nextAt) {
        nShown = found.length;
        show([...found]);
        nextAt = performance.now() + SHOW_MS;
      }
      const hit = hitOf(head, texts ?? (await reading), wanted);
      if (hit) found.push(hit);
    }
    return found;
  }

  /** Begins to read what has changed since the last time, in the order of the list. */
  #read(heads) {
    const changed = heads.filter(({ id, revision }) => this.#known.get(id)?.revision !== revision);
    if (!changed.length) return;
    const entries = new Map(changed.map(({ id, revision }) => [id, new Entry(revision)]));
    for (const [id, entry] of entries) this.#known.set(id, entry);
    const reading = this.#records.each([...entries.keys()], (id, chat) => entries.get(id).take(chat));
    reading.catch(() => this.#forget(entries));
  }

  /** What could not be read has no texts, until the next search tries again. */
  #forget(entries) {
    for (const [id, entry] of entries) {
      if (entry.texts) continue;
      if (this.#known.get(id) === entry) this.#known.delete(id);
      entry.take(null);
    }
  }
}

/** The contents of a chat's messages, once they are read. */
class Entry {
  texts = null;
  #resolve;
  reading = new Promise((resolve) => (this.#resolve = resolve));

  constructor(revision) {
    this.revision = revision;
  }

  take(chat) {
    this.texts = Object.values(chat?.messages ?? {}).map(({ content }) => content);
    this.#resolve(this.texts);
  }
}

/** A pattern is as fast as a search in lower case, and needs no second copy of all texts. */
function patternOf(text) {
  return new RegExp(text.replace(/[$()*+./?[\\\]^{|}]/g, "\\$&"), "iu");
}

function hitOf(head, texts, wanted) {
  for (const text of texts) {
    const found = wanted.exec(text);
    if (found) return { ...head, snippet: snippetOf(text, found.index, found[0].length) };
  }
  return wanted.test(head.title) ? { ...head, snippet: "" } : null;
}

function snippetOf(text, at, length) {
  const begin = Math.max(0, at - BEFORE);
  const end = Math.min(text.length, at + length + AFTER);
  const words = text.slice(begin, end).replace(/\s+/g, " ").trim();
  return (begin > 0 ? "…" : "") + words + (end < text.length ? "…" : "");
}
