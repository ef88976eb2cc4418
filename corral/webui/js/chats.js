// The chats: where they are stored, which of them are open, and what they are changed to.

import { draftOf, keepDraft, keepUnsent, unsent } from "./draft.js";
import { openLocalStore } from "./store.js";
import * as tree from "./tree.js";
import { leftovers, withoutLeftovers } from "./claim.js";
import { Saver } from "./saver.js";
import { onlyFields, startOfChats } from "./settings.js";
import { t } from "./text.js";

const NOT_SAVED = "unsaved";
const READ_AFTER_MS = 3_000; // for searches, once the page has come to rest
const MAX_READ_BYTES = 100e6; // of all that this browser keeps for the page, images as well

export class Chats {
  searching = Promise.resolve();
  #app;
  #open = new Map(); // chats that are shown or have a running answer, by id
  #store = null;
  #saver = null;
  #unwatch = () => {};
  #local = null;
  #isOffline = false; // only chats of this browser, until the server is there

  constructor(app) {
    this.#app = app;
  }

  /** Opens the store that belongs to a server, unless it is open. Returns whether it was opened. */
  async openStore(props) {
    if (this.#store?.kind === storeKind(props) && !this.#isOffline) return false;
    this.#isOffline = props.isOffline === true;
    this.#unwatch();
    this.#local ??= await openLocalStore();
    this.#store = storeKind(props) === "server" ? await (await import("./remote.js")).openRemoteStore() : this.#local;
    this.#saver = new Saver(this.#store, (chat, theirs) => this.#saved(chat, theirs), (error) => this.#notSaved(error));
    this.#unwatch = this.#store.onChange(() => unlessAway(this.#refresh()));
    if (!this.#store.isLasting && this.#store.kind === "browser") {
      this.#app.tell(t("app.noStorage"), "warn");
    }
    const nLocal = this.#store.kind === "server" ? (await this.#local.list()).length : 0;
    this.#app.set({ nLocal });
    await this.#saver.recover();
    await this.#list();
    if (this.#store === this.#local) setTimeout(() => this.#readAhead(), READ_AFTER_MS);
    return true;
  }

  /** Shows the chats of this browser while no server was found. */
  async readOffline() {
    if (this.#store) return;
    await this.openStore({ isOffline: true });
    await this.begin();
  }

  /** Forgets the store and what is open: they belong to another key. */
  forget() {
    this.#store = null;
    this.#open.clear();
    this.#app.set({ chat: tree.newChat() });
  }

  /** Shows the chat that the address names, or a new one. */
  async begin() {
    const wanted = location.hash.match(/^#\/chat\/([0-9a-f]{32})$/)?.[1];
    const { chat } = this.#app.state;
    if (wanted && wanted !== chat.id) await this.open(wanted);
    else if (!chat.leaf) this.#goOn(unsent());
  }

  /** Shows the chat without messages that was there before a reload. */
  #goOn(kept) {
    if (kept) this.create(draftOf(kept.id), { ...kept, settings: onlyFields(kept.settings) });
    else this.create();
  }

  // Lists

  async #list() {
    if (!this.#store) return;
    const { query } = this.#app.state;
    const show = (chats) => query === this.#app.state.query && this.#app.set({ chats, found: query });
    show(await this.find(query, show));
  }

  /** Handles changes by other tabs or browsers. */
  async #refresh() {
    await this.#list();
    const { chat, chats, running } = this.#app.state;
    const isOld = chats.some(({ id, updatedAt }) => id === chat.id && updatedAt > chat.updatedAt);
    if (!isOld || running[chat.id]) return;
    this.#open.delete(chat.id);
    await this.open(chat.id);
  }

  /** `searching` resolves when the list is complete. */
  search(query) {
    this.#app.set({ query });
    this.searching = this.#list();
    return this.searching;
  }

  /** Returns the chats with this text, newest first, each with a `snippet` of it; all of them without a text. `show` gets
   * what was found so far, if it takes long. */
  async find(text, show) {
    return (await (text ? this.#store?.search(text, show) : this.#store?.list())) ?? [];
  }

  /** Reads what the first search would have to read. */
  readTexts() {
    this.find(" ").catch(() => {});
  }

  async #readAhead() {
    const { usage } = (await navigator.storage?.estimate()) ?? {};
    if (usage < MAX_READ_BYTES) this.readTexts();
  }

  // One chat

  /** Shows a new chat. `draft`: text for the message box; `start`: its system prompt and settings. */
  create(draft = "", { system, settings } = startOfChats(this.#app.state.props)) {
    const created = tree.newChat(system, settings);
    if (draft) keepDraft(created.id, draft);
    this.#show(created);
  }

  /** Adds text to the message box. */
  writeDraft(text) {
    const { chat, nDrafts } = this.#app.state;
    keepDraft(chat.id, [draftOf(chat.id).trimEnd(), text].filter(Boolean).join("\n"));
    this.#app.set({ nDrafts: nDrafts + 1 });
  }

  async open(id) {
    const { running, props } = this.#app.state;
    const chat = await this.load(id).catch((error) => {
      if (error.status !== undefined) throw error; // no answer, or one that says why
      return error;
    });
    if (chat instanceof Error) {
      this.#app.tell(t("app.chatInvalid", { reason: chat.message }), "bad");
      this.create();
    } else if (chat) {
      const left = running[id] || !props?.durable ? [] : await leftovers(chat);
      this.#show(this.#app.state.running[id] ? chat : await withoutLeftovers(chat, left));
      for (const name of new Set(left.map(({ stream }) => stream.id))) {
        this.#app.writer.follow(id, left.filter(({ stream }) => stream.id === name));
      }
    } else {
      this.#app.tell(t("app.chatGone"), "warn");
      this.create();
    }
  }

  #show(chat) {
    const { state } = this.#app;
    for (const id of this.#open.keys()) if (!state.running[id]) this.#open.delete(id);
    this.#open.set(chat.id, chat);
    keepUnsent(chat.leaf ? null : chat);
    const editing = chat.id === state.chat.id ? state.editing : [];
    this.#app.set({ chat, editing, fieldErrors: {} });
    this.#app.many?.recall(chat);
    history.replaceState(null, "", chat.leaf ? `#/chat/${chat.id}` : location.pathname);
  }

  /** Returns an open chat. */
  get(id) {
    return this.#open.get(id);
  }

  async load(id) {
    return this.#open.get(id) ?? this.#store.load(id);
  }

  /** Removes chats; the notice of it offers to take that back. */
  async remove(...ids) {
    const removed = (await Promise.all(ids.map((id) => this.#remove(id)))).filter(Boolean);
    const shown = this.#app.state.chat.id;
    const isShown = ids.includes(shown);
    if (isShown) this.create();
    await this.#list();
    const undo = async () => {
      await Promise.all(removed.map((chat) => this.#store.save({ ...chat, revision: undefined }, chat.updatedAt)));
      await this.#list();
      if (isShown) await this.open(shown);
    };
    this.#app.tell(t("app.chatDeleted", { n: ids.length }), "info", { undo: removed.length > 0 && undo });
  }

  /** Returns the chat that was removed; null for one that is damaged, which is gone for good. */
  async #remove(id) {
    this.#app.writer.stop(id);
    const chat = await this.load(id).catch(() => null);
    this.#saver.forget(id);
    await this.#store.remove(id);
    this.#open.delete(id);
    return chat;
  }

  /** Changes an open chat and saves it, immediately or soon. */
  change(id, change, isUrgent = false) {
    const chat = change(this.#open.get(id));
    this.#open.set(id, chat);
    if (id === this.#app.state.chat.id) this.#app.set({ chat });
    if (chat.leaf) this.#saver?.save(chat, isUrgent);
    else keepUnsent(chat);
  }

  /** Changes fields of a chat, which need not be open. */
  async changeFields(id, fields) {
    if (this.#open.has(id)) return this.change(id, (chat) => ({ ...chat, ...fields }), true);
    const chat = await this.#store.load(id);
    if (chat) await this.#saver.save({ ...chat, ...fields }, true);
  }

  /** Puts chats into folders, by id; they keep their place in time unless they are being written. */
  async move(folders) {
    for (const [id, folder] of folders) {
      if (this.#app.state.running[id]) await this.changeFields(id, { folder });
      else await this.#move(id, folder);
    }
    await this.#list();
  }

  async #move(id, folder) {
    await this.#saver.settle(id);
    const chat = await this.load(id);
    if (!chat) return;
    const { revision, updatedAt } = await this.#store.save({ ...chat, folder }, chat.updatedAt + 1); // later, so that other pages notice
    const open = this.#open.get(id);
    if (!open) return;
    this.#open.set(id, { ...open, folder, revision, updatedAt });
    if (id === this.#app.state.chat.id) this.#app.set({ chat: this.#open.get(id) });
  }

  /** The saver tries again as long as the server is away, which the page says already. */
  #notSaved(error) {
    if (!error.isPassing) this.#app.tell(t("app.notSaved", { reason: error.message }), "bad", { topic: NOT_SAVED });
    else if (error.isUnreachable) this.#app.lose(error.message);
  }

  #saved({ id, updatedAt, revision }, theirs) {
    this.#app.untell(NOT_SAVED);
    const chat = this.#open.get(id);
    const { state } = this.#app;
    if (chat) this.#open.set(id, { ...(theirs ? tree.merge(chat, theirs) : chat), updatedAt, revision });
    if (id === state.chat.id) this.#app.set({ chat: this.#open.get(id) ?? state.chat });
    if (!state.running[id] || !state.chats.some((each) => each.id === id)) unlessAway(this.#list());
  }

  // Files

  async exportAs(ids) {
    const wanted = ids ?? (await this.#store.list()).map(({ id }) => id);
    const chats = (await Promise.all(wanted.map((id) => this.load(id)))).filter(Boolean);
    const transfer = await import("./transfer.js");
    transfer.download(ids?.length === 1 ? `${transfer.fileName(tree.titleOf(chats[0]))}.json` : "chats.json", transfer.exportChats(chats));
  }

  async importFrom(text) {
    try {
      const taken = (await this.#store.list()).map(({ id }) => id);
      const { importChats } = await import("./transfer.js");
      const chats = importChats(text, taken);
      for (const chat of chats) await this.#store.save(chat, chat.updatedAt);
      await this.#list();
      this.#app.tell(t("app.imported", { n: chats.length }));
      if (chats.length === 1) await this.open(chats[0].id);
    } catch (error) {
      this.#app.tell(error.message, "bad");
    }
  }

  /** Moves the chats of this browser to the server. */
  async moveToServer() {
    const { moveChats } = await import("./transfer.js");
    const n = await moveChats(this.#local, this.#store);
    this.#app.set({ nLocal: 0 });
    await this.#list();
    this.#app.tell(t("app.moved", { n }));
  }
}

/** A list that cannot be read while the server is away is read again later. */
function unlessAway(reading) {
  reading.catch((error) => {
    if (!error.isPassing) throw error;
  });
}

function storeKind(props) {
  return props.chats ? "server" : "browser";
}
