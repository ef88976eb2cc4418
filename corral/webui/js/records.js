// Where the browser keeps chats: IndexedDB, or memory where there is none. What lists show is kept apart from the
// chats, which may hold images.

const DATABASE = "corral";
const VERSION = 1;
const HEADS = "heads";
const CHATS = "chats";

/** IndexedDB; throws where the browser does not allow it. */
export async function openDatabase() {
  const database = new Database();
  await database.open();
  return database;
}

class Database {
  isLasting = true;
  #opened = null;

  open() {
    this.#opened ??= openIndexed(() => (this.#opened = null)).catch((error) => {
      this.#opened = null;
      throw error;
    });
    return this.#opened;
  }

  heads() {
    return this.#within("readonly", ({ heads }) => result(heads.getAll()));
  }

  async get(id) {
    return (await this.#within("readonly", ({ chats }) => result(chats.get(id)))) ?? null;
  }

  /** Calls `visit` with every chat, one at a time: all of them may be more than memory holds. */
  each(visit) {
    return this.#within("readonly", async ({ chats }) => {
      const request = chats.openCursor();
      for (let cursor = await result(request); cursor; cursor = await result(request)) {
        visit(cursor.value);
        cursor.continue();
      }
    });
  }

  /** Whether it was written: the chat that is there has to have that revision, undefined if there is none. */
  put(chat, revision) {
    return this.#within("readwrite", async ({ heads, chats }) => {
      const found = await result(heads.get(chat.id));
      if (found?.revision !== revision) return false;
      heads.put(headOf(chat));
      chats.put(chat);
      return true;
    });
  }

  remove(id) {
    return this.#within("readwrite", ({ heads, chats }) => {
      heads.delete(id);
      chats.delete(id);
    });
  }

  /** What `work` returns, once it is on disk; if anything fails, nothing is changed. */
  async #within(mode, work) {
    const database = await this.open();
    const transaction = database.transaction([HEADS, CHATS], mode);
    const complete = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(explained(transaction.error));
    });
    const stores = { heads: transaction.objectStore(HEADS), chats: transaction.objectStore(CHATS) };
    const worked = Promise.resolve(stores).then(work);
    worked.catch(() => abort(transaction));
    const [value] = await Promise.all([worked, complete]);
    return value;
  }
}

/** Forgets everything with the page. */
export class Memory {
  isLasting = false;
  #chats = new Map();

  async heads() {
    return [...this.#chats.values()].map(headOf);
  }

  async get(id) {
    return structuredClone(this.#chats.get(id) ?? null);
  }

  async each(visit) {
    for (const chat of this.#chats.values()) visit(chat);
  }

  async put(chat, revision) {
    if (this.#chats.get(chat.id)?.revision !== revision) return false;
    this.#chats.set(chat.id, structuredClone(chat));
    return true;
  }

  async remove(id) {
    this.#chats.delete(id);
  }
}

function headOf({ id, title, createdAt, updatedAt, revision }) {
  return { id, title, createdAt, updatedAt, revision };
}

function openIndexed(onLost) {
  const request = indexedDB.open(DATABASE, VERSION);
  request.onupgradeneeded = ({ oldVersion }) => {
    if (oldVersion < 1) {
      request.result.createObjectStore(HEADS, { keyPath: "id" });
      request.result.createObjectStore(CHATS, { keyPath: "id" });
    }
  };
  return result(request).then((database) => {
    database.onclose = onLost; // somebody has cleared the browser's data
    database.onversionchange = () => {
      database.close(); // a newer page in another tab needs it
      onLost();
    };
    return database;
  });
}

function abort(transaction) {
  try {
    transaction.abort();
  } catch {
    // it has ended by itself
  }
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(explained(request.error));
  });
}

function explained(error) {
  if (error?.name === "QuotaExceededError") return new Error("This browser's storage is full.");
  return error ?? new Error("The browser could not store the chat.");
}
