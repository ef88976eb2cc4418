// The state of the page, which server it talks to, and the chat that it shows. Views render `state` and call methods of this
// and of its parts; nothing else changes it.

import { ask, setApiKey } from "./api.js";
import { Chats } from "./chats.js";
import { LiveAnswers } from "./live.js";
import { defaultsOf, onlyFields } from "./settings.js";
import { ToolUse } from "./tool_use.js";
import { t } from "./text.js";
import * as tree from "./tree.js";
import { Writer } from "./writer.js";

const RETRY_MS = 1500;
const NOTICE_MS = 6000;

export class ChatApp {
  /** server: connecting, loading, ready, down or locked (it requires a key). `fieldErrors`: the server's errors for
   * settings. `running`: the progress of running answers, by chat and message. `editing`: ids of the messages in an editor.
   * `callRuns`: results of tool calls that wait for others, by message and index. */
  state = {
    server: "connecting",
    reason: "",
    props: null,
    defaults: defaultsOf(null),
    chats: [],
    query: "",
    found: "", // the query that `chats` are found by
    hit: null, // which place of the query is looked at: { id: of the chat, query, at }
    selected: null, // ids of chats, while several are being chosen
    renaming: "", // the chat whose title is being written
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

  chats = new Chats(this);
  writer = new Writer(this);
  tools = new ToolUse(this);
  live = new LiveAnswers();
  #listeners = new Set();
  #retry = 0;
  #leaving = 0;

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Only for the parts of the page's state that are in other files. */
  set(changes) {
    this.state = { ...this.state, ...changes };
    for (const listener of this.#listeners) listener(this.state);
  }

  /** Shows a notice, or none without text. A success (`info`) leaves by itself; others stay until they are dismissed, or no
   * longer true: `untell` with the same topic. `undo`: takes back what it tells of. */
  tell(text, kind = "info", { topic = "", undo = null } = {}) {
    clearTimeout(this.#leaving);
    this.set({ notice: text ? { text, kind, topic, undo } : null });
    if (text && kind === "info") this.#leaving = setTimeout(() => this.tell(""), NOTICE_MS);
  }

  untell(topic) {
    if (this.state.notice?.topic === topic) this.tell("");
  }

  openPanel(name, fields = {}) {
    this.set({ panel: { name, ...fields } });
  }

  /** Closes this panel, unless another one is open by now. */
  closePanel(panel) {
    if (panel === this.state.panel) this.set({ panel: null });
  }

  // The server

  /** Reads the server's properties, retrying until it responds. */
  async connect() {
    try {
      const props = await ask("/props");
      if (props.role === "router" && "ui" in props) return await this.#meetModels(props);
      if (!props.default_generation_settings?.params) return this.set({ server: "locked" });
      await this.meet(props);
    } catch (error) {
      if (error.status === undefined) throw error;
      if (error.wantsKey) return this.set({ server: "locked" });
      this.set({ server: error.status === 503 ? "loading" : "down", reason: error.stage || error.message });
      if (error.isUnreachable) await this.chats.readOffline();
      this.#connectLater();
    }
  }

  /** Begins or goes on with these properties of the server. */
  async meet(props) {
    const isNew = await this.chats.openStore(props);
    this.set({ props, defaults: defaultsOf(props) });
    if (isNew) await this.chats.begin();
    this.set({ server: "ready", reason: "" });
  }

  /** Where the server has several models: `many` knows them, and which one is used. */
  async #meetModels(props) {
    const { ManyModels } = await import("./many_models.js");
    this.many ??= new ManyModels(this, (changes) => this.set(changes));
    if (!(await this.many.begin(props))) this.#connectLater();
  }

  /** Notes that the server is away, and looks for it again. */
  lose(reason) {
    this.set({ server: "down", reason });
    this.#connectLater();
  }

  #connectLater() {
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.connect(), RETRY_MS);
  }

  useKey(key) {
    setApiKey(key);
    this.tools.forget();
    this.chats.forget();
    return this.connect();
  }

  // The chat that is shown

  setSystem(system) {
    this.chats.change(this.state.chat.id, (chat) => ({ ...chat, system }));
  }

  /** `undefined`: the server's default. */
  setSetting(name, value) {
    const { [name]: _, ...others } = this.state.chat.settings;
    this.useSettings(value === undefined ? others : { ...others, [name]: value });
    this.set({ fieldErrors: { ...this.state.fieldErrors, [name]: "" } });
  }

  useSettings(settings) {
    this.chats.change(this.state.chat.id, (chat) => ({ ...chat, settings: onlyFields(settings) }));
  }

  setFieldError(name, text) {
    this.set({ fieldErrors: { ...this.state.fieldErrors, [name]: text } });
  }

  showBranch(messageId) {
    this.chats.change(this.state.chat.id, (chat) => tree.showBranch(chat, messageId), true);
  }

  /** Removes a message and what follows; without any message the chat is gone too. */
  removeMessage(messageId) {
    const { chat } = this.state;
    const left = tree.removeBranch(chat, messageId);
    if (!left.leaf) return this.chats.remove(chat.id);
    this.chats.change(chat.id, () => left, true);
    const undo = async () => {
      await this.chats.open(chat.id);
      const { leaf, messages } = chat;
      this.chats.change(chat.id, (now) => ({ ...now, leaf, messages: { ...messages, ...now.messages } }), true);
    };
    return this.tell(t("message.deleted"), "info", { undo });
  }

  openEditor(messageId) {
    this.closeEditor(messageId);
    this.set({ editing: [...this.state.editing, messageId] });
  }

  closeEditor(messageId) {
    this.set({ editing: this.state.editing.filter((id) => id !== messageId) });
  }
}
