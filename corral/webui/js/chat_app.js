// The state and actions of the page: the server, the chats, running answers. Views render `state` and call methods;
// nothing else changes it.

import { ask, currentModel, setApiKey } from "./api.js";
import { followAnswers, forkAnswers, frames, streamAnswers } from "./answer.js";
import { draftOf, keepDraft } from "./draft.js";
import { failureOf } from "./failure.js";
import { FIELDS, defaultsOf } from "./settings.js";
import { openLocalStore } from "./store.js";
import * as tree from "./tree.js";
import { CLOSED, claim, leftovers, withoutLeftovers } from "./claim.js";
import { FORGOTTEN, endStream } from "./durable.js";
import { LiveAnswers } from "./live.js";
import { Saver } from "./saver.js";
import { t } from "./text.js";

const RETRY_MS = 1500;
const TOOLS = "corral.tools"; // in local storage while a tool is on
const FIELD_NAMES = new Set(FIELDS.map(({ name }) => name));

export class ChatApp {
  /** server: connecting, loading, ready, down or locked (it requires a key). `fieldErrors`: the server's errors for
   * settings. `running`: the progress of running answers, by chat. `editing`: ids of the messages in an editor.
   * `callRuns`: results of tool calls that wait for others, by message and index. */
  state = {
    server: "connecting",
    reason: "",
    props: null,
    defaults: defaultsOf(null),
    chats: [],
    query: "",
    chat: tree.newChat(),
    editing: [],
    running: {},
    callRuns: {},
    fieldErrors: {},
    notice: null,
    nLocal: 0,
    models: [],
    nDrafts: 0, // times that something else than the message box has written a draft
    panel: null, // what is open over the page: { name: a file in panel/, and its properties }
  };

  live = new LiveAnswers();
  #listeners = new Set();
  #controllers = new Map(); // of running answers, by chat: a set
  #open = new Map(); // chats that are shown or have a running answer, by id
  #store = null;
  #saver = null;
  #unwatch = () => {};
  #local = null;
  #retry = 0;
  #toolbox = null;

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #set(changes) {
    this.state = { ...this.state, ...changes };
    for (const listener of this.#listeners) listener(this.state);
  }

  tell(text, kind = "info") {
    this.#set({ notice: text ? { text, kind } : null });
  }

  openPanel(name, fields = {}) {
    this.#set({ panel: { name, ...fields } });
  }

  /** Closes this panel, unless another one is open by now. */
  closePanel(panel) {
    if (panel === this.state.panel) this.#set({ panel: null });
  }

  // The server

  /** Reads the server's properties, retrying until it responds. */
  async connect() {
    try {
      const props = await ask("/props");
      if (props.role === "router" && "ui" in props) return await this.#meetModels();
      if (!props.default_generation_settings?.params) return this.#set({ server: "locked" });
      const isNew = this.#store?.kind !== storeKind(props);
      if (isNew) await this.#openStore(props);
      this.#set({ server: "ready", reason: "", props, defaults: defaultsOf(props) });
      if (isNew) await this.#begin();
    } catch (error) {
      if (error.status === undefined) throw error;
      if (error.wantsKey) return this.#set({ server: "locked" });
      this.#set({ server: error.status === 503 ? "loading" : "down", reason: error.stage || error.message });
      this.#connectLater();
    }
  }

  /** Where the server has several models: `many` knows them, and which one is used. */
  async #meetModels() {
    const { ManyModels } = await import("./many_models.js");
    this.many ??= new ManyModels(this, (changes) => this.#set(changes));
    if (!(await this.many.begin())) this.#connectLater();
  }

  #connectLater() {
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.connect(), RETRY_MS);
  }

  useKey(key) {
    setApiKey(key);
    this.#toolbox = null;
    this.#store = null; // chats on the server belong to the old key
    this.#open.clear();
    this.#set({ chat: tree.newChat() });
    return this.connect();
  }

  async #openStore(props) {
    this.#unwatch();
    this.#local ??= await openLocalStore();
    this.#store = storeKind(props) === "server" ? await (await import("./remote.js")).openRemoteStore() : this.#local;
    this.#saver = new Saver(this.#store, (chat, theirs) => this.#saved(chat, theirs), (text) => this.tell(text, "bad"));
    this.#unwatch = this.#store.onChange(() => this.#refresh());
    if (!this.#store.isLasting && this.#store.kind === "browser") {
      this.tell(t("app.noStorage"), "warn");
    }
    const nLocal = this.#store.kind === "server" ? (await this.#local.list()).length : 0;
    this.#set({ nLocal });
    await this.#saver.recover();
    await this.#list();
  }

  /** Shows the chat that the address names, or a new one. */
  async #begin() {
    const wanted = location.hash.match(/^#\/chat\/([0-9a-f]{32})$/)?.[1];
    if (wanted && wanted !== this.state.chat.id) await this.openChat(wanted);
    else if (!this.state.chat.leaf) this.newChat();
  }

  // Lists of chats

  async #list() {
    if (!this.#store) return;
    const { query } = this.state;
    const chats = await this.findChats(query);
    if (query === this.state.query) this.#set({ chats });
  }

  /** Handles changes by other tabs or browsers. */
  async #refresh() {
    await this.#list();
    const { chat, chats, running } = this.state;
    const isOld = chats.some(({ id, updatedAt }) => id === chat.id && updatedAt > chat.updatedAt);
    if (!isOld || running[chat.id]) return;
    this.#open.delete(chat.id);
    await this.openChat(chat.id);
  }

  async search(query) {
    this.#set({ query });
    await this.#list();
  }

  /** `draft`: text for the message box. */
  newChat(draft = "") {
    const { chat, props } = this.state;
    const settings = chat.leaf || Object.keys(chat.settings).length ? chat.settings : (props?.ui_settings ?? {});
    const created = tree.newChat(chat.system || settings.system || "", onlyFields(settings));
    if (draft) keepDraft(created.id, draft);
    this.#show(created);
  }

  /** Adds text to the message box. */
  writeDraft(text) {
    const { chat, nDrafts } = this.state;
    keepDraft(chat.id, [draftOf(chat.id).trimEnd(), text].filter(Boolean).join("\n"));
    this.#set({ nDrafts: nDrafts + 1 });
  }

  async openChat(id) {
    const chat = this.#open.get(id) ?? (await this.#store.load(id));
    if (chat) {
      const left = this.state.running[id] || !this.state.props?.durable ? [] : await leftovers(chat);
      this.#show(this.state.running[id] ? chat : await withoutLeftovers(chat, left));
      for (const name of new Set(left.map(({ stream }) => stream.id))) {
        this.#follow(id, left.filter(({ stream }) => stream.id === name));
      }
    } else {
      this.tell(t("app.chatGone"), "warn");
      this.newChat();
    }
  }

  #show(chat) {
    for (const id of this.#open.keys()) if (!this.state.running[id]) this.#open.delete(id);
    this.#open.set(chat.id, chat);
    const editing = chat.id === this.state.chat.id ? this.state.editing : [];
    this.#set({ chat, editing, fieldErrors: {} });
    this.many?.recall(chat);
    history.replaceState(null, "", chat.leaf ? `#/chat/${chat.id}` : location.pathname);
  }

  async removeChat(id) {
    this.stop(id);
    this.#saver.forget(id);
    await this.#store.remove(id);
    this.#open.delete(id);
    if (id === this.state.chat.id) this.newChat();
    await this.#list();
  }

  /** Changes fields of a chat, which need not be open. */
  async changeChat(id, fields) {
    if (this.#open.has(id)) return this.#change(id, (chat) => ({ ...chat, ...fields }), true);
    const chat = await this.#store.load(id);
    if (chat) await this.#saver.save({ ...chat, ...fields }, true);
  }

  loadChat(id) {
    return this.#open.get(id) ?? this.#store.load(id);
  }

  /** Returns the chats with this text, newest first; all of them without a text. */
  async findChats(text) {
    return (await (text ? this.#store?.search(text) : this.#store?.list())) ?? [];
  }

  async exportChats(ids) {
    const wanted = ids ?? (await this.#store.list()).map(({ id }) => id);
    const chats = (await Promise.all(wanted.map((id) => this.loadChat(id)))).filter(Boolean);
    const transfer = await import("./transfer.js");
    transfer.download(ids ? `${transfer.fileName(tree.titleOf(chats[0]))}.json` : "chats.json", transfer.exportChats(chats));
  }

  async importChats(text) {
    try {
      const taken = (await this.#store.list()).map(({ id }) => id);
      const { importChats } = await import("./transfer.js");
      const chats = importChats(text, taken);
      for (const chat of chats) await this.#store.save(chat);
      await this.#list();
      this.tell(t("app.imported", { n: chats.length }));
      if (chats.length === 1) await this.openChat(chats[0].id);
    } catch (error) {
      this.tell(error.message, "bad");
    }
  }

  /** Moves the chats of this browser to the server. */
  async moveToServer() {
    const { moveChats } = await import("./transfer.js");
    const n = await moveChats(this.#local, this.#store);
    this.#set({ nLocal: 0 });
    await this.#list();
    this.tell(t("app.moved", { n }));
  }

  // The chat that is shown

  /** Changes an open chat and saves it, immediately or soon. */
  #change(id, change, isUrgent = false) {
    const chat = change(this.#open.get(id));
    this.#open.set(id, chat);
    if (id === this.state.chat.id) this.#set({ chat });
    if (chat.leaf) this.#saver?.save(chat, isUrgent);
  }

  #saved({ id, updatedAt, revision }, theirs) {
    const chat = this.#open.get(id);
    if (chat) this.#open.set(id, { ...(theirs ? tree.merge(chat, theirs) : chat), updatedAt, revision });
    if (id === this.state.chat.id) this.#set({ chat: this.#open.get(id) ?? this.state.chat });
    if (!this.state.running[id] || !this.state.chats.some((each) => each.id === id)) this.#list();
  }

  setSystem(system) {
    this.#change(this.state.chat.id, (chat) => ({ ...chat, system }));
  }

  /** `undefined`: the server's default. */
  setSetting(name, value) {
    const { [name]: _, ...others } = this.state.chat.settings;
    this.useSettings(value === undefined ? others : { ...others, [name]: value });
    this.#set({ fieldErrors: { ...this.state.fieldErrors, [name]: "" } });
  }

  useSettings(settings) {
    this.#change(this.state.chat.id, (chat) => ({ ...chat, settings: onlyFields(settings) }));
  }

  setFieldError(name, text) {
    this.#set({ fieldErrors: { ...this.state.fieldErrors, [name]: text } });
  }

  showBranch(messageId) {
    this.#change(this.state.chat.id, (chat) => tree.showBranch(chat, messageId), true);
  }

  removeMessage(messageId) {
    this.#change(this.state.chat.id, (chat) => tree.removeBranch(chat, messageId), true);
  }

  openEditor(messageId) {
    this.closeEditor(messageId);
    this.#set({ editing: [...this.state.editing, messageId] });
  }

  closeEditor(messageId) {
    this.#set({ editing: this.state.editing.filter((id) => id !== messageId) });
  }

  // Answers

  send(content, images = [], { files = [], audio = [] } = {}) {
    const { chat } = this.state;
    return this.#say(chat.id, chat.leaf, { role: "user", content, ...onlyFull({ images, files, audio }) });
  }

  /** Adds an edited message as a new branch. The model answers it unless it is an edited answer. */
  edit(messageId, content) {
    const { chat } = this.state;
    const { role, parent, images, files, audio } = chat.messages[messageId];
    const message = { role, content, ...onlyFull({ images, files, audio }) };
    if (role !== "assistant") return this.#say(chat.id, parent, message);
    return this.#change(chat.id, (each) => tree.addMessage(each, parent, message), true);
  }

  answerCalls(messageId, results, id = this.state.chat.id) {
    this.#set({ callRuns: { ...this.state.callRuns, [messageId]: undefined } });
    let parent = messageId;
    for (const { isRunning: _, ...result } of results) {
      this.#change(id, (chat) => tree.addMessage(chat, parent, { role: "tool", ...result }));
      parent = this.#open.get(id).leaf;
    }
    return this.#answer(id, parent);
  }

  regenerate(messageId) {
    const { chat } = this.state;
    return this.#answer(chat.id, chat.messages[messageId].parent);
  }

  /** Generates several answers at once, as alternatives to this one. */
  answerAgain(messageId, n) {
    const { id, messages } = this.state.chat;
    if (this.state.running[id]) return undefined;
    const ids = Array.from({ length: n }, () => {
      this.#change(id, (chat) => tree.addMessage(chat, messages[messageId].parent, { role: "assistant", ...currentModel() }));
      return this.#open.get(id).leaf;
    });
    return this.#write(id, ids);
  }

  /** Continues an answer; with other text, as a new branch, unless it is being generated. */
  async continueAnswer(messageId, content = this.state.chat.messages[messageId].content) {
    const { chat } = this.state;
    const message = chat.messages[messageId];
    if (this.live.has(messageId)) {
      if (await this.live.edit(messageId, message, content, message.content.slice(0, message.start ?? 0))) return undefined;
      await this.#end(chat.id);
    }
    if (content === chat.messages[messageId].content) return this.#write(chat.id, [messageId]);
    this.edit(messageId, content);
    return this.#write(chat.id, [this.state.chat.leaf]);
  }

  stop(id = this.state.chat.id) {
    for (const { stream } of Object.values(this.#open.get(id)?.messages ?? {})) if (stream) endStream(stream.id);
    for (const controller of this.#controllers.get(id) ?? []) controller.abort();
  }

  /** Stops the answers of a chat, and waits until they are saved. */
  async #end(id) {
    this.stop(id);
    while (this.state.running[id]) await new Promise((resolve) => setTimeout(resolve, 10));
  }

  /** Begins a second answer with what this one has said so far, as another branch; both are generated. */
  fork(messageId) {
    const { id, messages } = this.state.chat;
    const { parent, content, start = 0 } = messages[messageId];
    const fields = { role: "assistant", ...currentModel(), content: content.slice(0, start) };
    this.#change(id, (chat) => tree.addMessage(chat, parent, fields));
    const json = this.live.forkOf(messageId);
    return this.#run(id, [this.#open.get(id).leaf], (_, begun, options) => forkAnswers(json, begun, options));
  }

  /** Follows an answer that was begun before this page was opened, or by another one. */
  #follow(id, messages) {
    const begun = messages.sort((a, b) => a.stream.index - b.stream.index);
    const ids = begun.map((each) => each.id);
    return this.#run(id, ids, (_, each, options) => followAnswers(begun[0].stream.id, each.map(asBegun), options), true);
  }

  // Tools

  get hasTools() {
    return localStorage.getItem(TOOLS) !== null;
  }

  /** Returns the tools that the model may call; `isFresh`: look for them again. */
  toolbox(isFresh = false) {
    if (isFresh) this.#toolbox = null;
    this.#toolbox ??= import("./tools/toolbox.js").then(({ Toolbox }) => new Toolbox(this.state.props).load());
    return this.#toolbox;
  }

  toolsChanged() {
    this.#set({});
  }

  setCallRun(messageId, i, run) {
    const { callRuns } = this.state;
    this.#set({ callRuns: { ...callRuns, [messageId]: { ...callRuns[messageId], [i]: run } } });
  }

  /** Does something in a chat that the user can stop. */
  async whileRunning(id, work) {
    const controller = this.#start(id);
    try {
      await work(controller.signal);
    } finally {
      this.#finish(id, controller);
    }
  }

  async #runAllowed(toolbox, id, messageId) {
    const path = tree.ancestry(this.#open.get(id), messageId);
    if (!path.at(-1).toolCalls?.length) return;
    const { runAllowed } = await import("./tools/loop.js");
    await runAllowed(this, toolbox, id, path);
  }

  #say(id, parent, message) {
    this.#change(id, (chat) => titled(tree.addMessage(chat, parent, message)), true);
    if (id === this.state.chat.id) history.replaceState(null, "", `#/chat/${id}`);
    return this.#answer(id, this.#open.get(id).leaf);
  }

  #answer(id, parent) {
    this.#change(id, (chat) => tree.addMessage(chat, parent, { role: "assistant", ...currentModel() }));
    return this.#write(id, [this.#open.get(id).leaf]);
  }

  #start(id) {
    const controller = new AbortController();
    this.#controllers.set(id, (this.#controllers.get(id) ?? new Set()).add(controller));
    this.#setRunning(id, {});
    return controller;
  }

  #finish(id, controller) {
    const others = this.#controllers.get(id);
    others.delete(controller);
    if (!others.size) this.#setRunning(id, null);
  }

  /** Generates messages, or continues a single one. */
  async #write(id, messageIds) {
    if (!this.state.running[id]) await this.#run(id, messageIds, (...request) => streamAnswers(this.#open.get(id), ...request));
  }

  /** `generate(path, begun, options)` yields the messages as they grow. `isOld`: they were begun before. */
  async #run(id, messageIds, generate, isOld = false) {
    const controller = this.#start(id);
    const release = await claim(id);
    const chat = this.#open.get(id);
    const isDurable = Boolean(this.state.props?.durable);
    const begun = messageIds.map((each) => (isOld ? chat.messages[each] : startOf(chat.messages[each])));
    this.#change(id, (each) => tree.changeMessages(each, begun), true);
    const path = tree.ancestry(chat, begun[0].parent);
    const options = {
      isDurable,
      signal: controller.signal,
      onProgress: (news) => this.#setRunning(id, news),
      onAnswer: (answer) => messageIds.forEach((each) => this.live.set(each, answer)),
      onStream: (name) => this.#noteStream(id, begun, name),
      onLost: () => this.#lose(t("common.unreachable")),
    };
    let end = { state: "done" };
    let toolbox = null;
    try {
      if (this.hasTools) toolbox = await this.toolbox();
      if (toolbox) options.tools = toolbox.definitions();
      for await (const messages of frames(generate(path, begun, options))) {
        this.#change(id, (each) => tree.changeMessages(each, messages.map(({ stream: _, ...fields }) => fields)));
      }
    } catch (error) {
      end = isOld && error.type === FORGOTTEN ? { state: "interrupted", error: CLOSED } : this.#failed(error);
    } finally {
      this.#finish(id, controller);
      this.live.forget(messageIds);
      const { messages } = this.#open.get(id);
      const ended = messageIds.map((each) => ({ id: each, stream: undefined, ...(messages[each].finish ? { state: "done" } : end) }));
      this.#change(id, (each) => tree.changeMessages(each, ended), true);
      release();
    }
    if (toolbox && end.state === "done" && messageIds.length === 1) await this.#runAllowed(toolbox, id, messageIds[0]);
  }

  /** Has every page that opens the chat find the stream of an answer. */
  #noteStream(id, begun, name) {
    const noted = begun.map(({ id: each, start }, index) => ({ id: each, stream: { id: name, index, start } }));
    this.#change(id, (chat) => tree.changeMessages(chat, noted), true);
  }

  #setRunning(id, progress) {
    const { [id]: _, ...others } = this.state.running;
    this.#set({ running: progress ? { ...others, [id]: progress } : others });
  }

  /** Says that the server cannot be reached, until it can. */
  #lose(reason) {
    this.#set({ server: "down", reason });
    this.#connectLater();
  }

  #failed(error) {
    if (error.name === "AbortError") return { state: "stopped" };
    if (error.status === undefined) throw error;
    if (FIELD_NAMES.has(error.field)) this.setFieldError(error.field, error.message);
    if (error.wantsKey) this.#set({ server: "locked" });
    if (!error.isUnreachable && error.type !== FORGOTTEN) return { state: "failed", ...failureOf(error) };
    if (error.isUnreachable) this.#lose(error.message);
    return { state: "interrupted", error: t("app.lost"), remedies: ["again"] };
  }
}

/** Returns a message as it is when its answer begins; `start`: how much of it the model did not write. */
function startOf(message) {
  return { ...message, start: message.content.length, state: "writing", error: "", finish: "" };
}

/** Returns a message as it was when its answer began. */
function asBegun({ content, start, ...message }) {
  return { ...message, content: content.slice(0, start), start, reasoning: undefined, toolCalls: undefined, tokens: undefined };
}

function titled(chat) {
  return { ...chat, title: tree.titleOf(chat) };
}

function storeKind(props) {
  return props.chats ? "server" : "browser";
}

function onlyFields(settings) {
  return Object.fromEntries(Object.entries(settings).filter(([name]) => FIELD_NAMES.has(name)));
}

function onlyFull(lists) {
  return Object.fromEntries(Object.entries(lists).filter(([, list]) => list?.length));
}
