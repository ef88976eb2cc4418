// Chats in the browser: in IndexedDB, or in memory without it. The fields of lists are stored separately from the
// chats, which may contain images.

import { t } from "./text.js";

const DATABASE = "corral";
const VERSION = 1;
const HEADS = "heads";
const CHATS = "chats";
const N_AHEAD = 8; // chats that are read while another one is looked at

/** Opens IndexedDB; throws if the browser does not allow it. */
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

  /** Calls `visit(id, chat)` with these chats in order, without waiting for each, and only a few at a time, since all of them
   * may not fit in memory. */
  each(ids, visit) {
    return this.#within("readonly", async ({ chats }) => {
      const ask = (id) => result(chats.get(id));
      const coming = ids.slice(0, N_AHEAD).map(ask);
      for (const [i, id] of ids.entries()) {
        visit(id, await coming.shift());
        if (i + N_AHEAD < ids.length) coming.push(ask(ids[i + N_AHEAD]));
      }
    });
  }

  /** Writes the chat if the stored revision matches (undefined: no stored chat); returns whether it did. */
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

  /** Runs `work` in a transaction and returns its result once that is committed. */
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

/** Chats in memory, lost when the page is closed. */
export class Memory {
  isLasting = false;
  #chats = new Map();

  async heads() {
    return [...this.#chats.values()].map(headOf);
  }

  async get(id) {
    return structuredClone(this.#chats.get(id) ?? null);
  }

  async each(ids, visit) {
    for (const id of ids) visit(id, this.#chats.get(id));
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

function headOf({ id, title, createdAt, updatedAt, revision, pinned = false, folder = "" }) {
  return { id, title, createdAt, updatedAt, revision, pinned, folder };
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
    database.onclose = onLost; // the user has cleared the browser's data
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
    // it has already ended
  }
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(explained(request.error));
  });
}

function explained(error) {
  if (error?.name === "QuotaExceededError") return new Error(t("common.storageFull"));
  return error ?? new Error(t("app.notStored"));
}
