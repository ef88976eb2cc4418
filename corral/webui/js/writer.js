// Answers: what asks for them, those that are running, and how they end.

import { followAnswers, frames, streamAnswers } from "./answer.js";
import { cutOf, failureOf } from "./failure.js";
import { isField } from "./settings.js";
import * as tree from "./tree.js";
import { CLOSED, claim } from "./claim.js";
import { FORGOTTEN, endStream } from "./durable.js";
import { t } from "./text.js";

export class Writer {
  #app;
  #controllers = new Map(); // of running answers, by chat: a map to their messages

  constructor(app) {
    this.#app = app;
  }

  send(content, images = [], { files = [], audio = [] } = {}) {
    const { chat } = this.#app.state;
    return this.#say(chat.id, chat.leaf, { role: "user", content, ...onlyFull({ images, files, audio }) });
  }

  /** Adds an edited message as a new branch. The model answers it unless it is an edited answer. */
  edit(messageId, content) {
    const { chat } = this.#app.state;
    const { role, parent, images, files, audio } = chat.messages[messageId];
    const message = { role, content, ...onlyFull({ images, files, audio }) };
    if (role !== "assistant") return this.#say(chat.id, parent, message);
    return this.#app.chats.change(chat.id, (each) => tree.addMessage(each, parent, message), true);
  }

  answerCalls(messageId, results, id = this.#app.state.chat.id) {
    this.#app.set({ callRuns: { ...this.#app.state.callRuns, [messageId]: undefined } });
    let parent = messageId;
    for (const { isRunning: _, ...result } of results) {
      this.#app.chats.change(id, (chat) => tree.addMessage(chat, parent, { role: "tool", ...result }));
      parent = this.#app.chats.get(id).leaf;
    }
    return this.#answer(id, parent);
  }

  regenerate(messageId) {
    const { chat } = this.#app.state;
    return this.#answer(chat.id, chat.messages[messageId].parent);
  }

  /** Generates several answers at once, as alternatives to this one. */
  answerAgain(messageId, n) {
    const { id, messages } = this.#app.state.chat;
    if (this.#app.state.running[id]) return undefined;
    const ids = Array.from({ length: n }, () => {
      this.#app.chats.change(id, (chat) => tree.addMessage(chat, messages[messageId].parent, { role: "assistant", ...this.#author() }));
      return this.#app.chats.get(id).leaf;
    });
    return this.#write(id, ids);
  }

  /** Continues an answer; with other text, as a new branch. If it is being generated, it ends. */
  async continueAnswer(messageId, content = this.#app.state.chat.messages[messageId].content) {
    const { id } = this.#app.state.chat;
    const generate = this.#app.live.has(messageId) ? this.#generate : this.#write;
    await this.#end(id, messageId);
    const isSame = content === this.#app.chats.get(id).messages[messageId].content;
    return generate.call(this, id, [isSame ? messageId : this.#branch(id, messageId, content)]);
  }

  stop(id = this.#app.state.chat.id) {
    for (const { stream } of Object.values(this.#app.chats.get(id)?.messages ?? {})) if (stream) endStream(stream.id);
    for (const controller of this.#controllers.get(id)?.keys() ?? []) controller.abort();
  }

  /** Stops one answer of a chat, if it is being generated, and waits until it is saved. */
  async #end(id, messageId) {
    const { stream } = this.#app.chats.get(id).messages[messageId];
    if (stream) endStream(stream.id);
    for (const [controller, messageIds] of this.#controllers.get(id) ?? []) if (messageIds.includes(messageId)) controller.abort();
    while (this.#app.live.has(messageId)) await new Promise((resolve) => setTimeout(resolve, 10));
  }

  /** Begins a second answer with what this one has said so far, as another branch; both are generated. */
  fork(messageId) {
    const { id, messages } = this.#app.state.chat;
    return this.#generate(id, [this.#branch(id, messageId, messages[messageId].content)]);
  }

  /** Adds an alternative to an answer; returns its id. */
  #branch(id, messageId, content) {
    const { parent, reasoning } = this.#app.chats.get(id).messages[messageId];
    const message = { role: "assistant", ...this.#author(), content, ...onlyFull({ reasoning }) };
    this.#app.chats.change(id, (chat) => tree.addMessage(chat, parent, message), true);
    return this.#app.chats.get(id).leaf;
  }

  /** Follows an answer that was begun before this page was opened, or by another one. */
  follow(id, messages) {
    const begun = messages.sort((a, b) => a.stream.index - b.stream.index);
    const ids = begun.map((each) => each.id);
    return this.#run(id, ids, (_, each, options) => followAnswers(begun[0].stream.id, each.map(asBegun), options), true);
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
    const path = tree.ancestry(this.#app.chats.get(id), messageId);
    if (!path.at(-1).toolCalls?.length) return;
    const { runAllowed } = await import("./tools/loop.js");
    await runAllowed(this.#app, toolbox, id, path);
  }

  /** The model that answers, as a field of its messages. */
  #author() {
    const { props } = this.#app.state;
    return props?.model_alias ? { model: props.model_alias } : {};
  }

  #say(id, parent, message) {
    this.#app.chats.change(id, (chat) => titled(tree.addMessage(chat, parent, message)), true);
    if (id === this.#app.state.chat.id) history.replaceState(null, "", `#/chat/${id}`);
    return this.#answer(id, this.#app.chats.get(id).leaf);
  }

  #answer(id, parent) {
    this.#app.chats.change(id, (chat) => tree.addMessage(chat, parent, { role: "assistant", ...this.#author() }));
    return this.#write(id, [this.#app.chats.get(id).leaf]);
  }

  #start(id, messageIds = []) {
    const controller = new AbortController();
    this.#controllers.set(id, (this.#controllers.get(id) ?? new Map()).set(controller, messageIds));
    this.#note(id, messageIds, {});
    return controller;
  }

  #finish(id, controller) {
    const others = this.#controllers.get(id);
    others.delete(controller);
    if (!others.size) this.#setRunning(id, null);
  }

  /** Generates messages, or continues a single one, unless the chat has running answers. */
  async #write(id, messageIds) {
    if (!this.#app.state.running[id]) await this.#generate(id, messageIds);
  }

  #generate(id, messageIds) {
    return this.#run(id, messageIds, (...request) => streamAnswers(this.#app.chats.get(id), ...request));
  }

  /** `generate(path, begun, options)` yields the messages as they grow. `isOld`: they were begun before. */
  async #run(id, messageIds, generate, isOld = false) {
    const controller = this.#start(id, messageIds);
    const release = await claim(id);
    const chat = this.#app.chats.get(id);
    const begun = messageIds.map((each) => (isOld ? chat.messages[each] : startOf(chat.messages[each])));
    this.#app.chats.change(id, (each) => tree.changeMessages(each, begun), true);
    const path = tree.ancestry(chat, begun[0].parent);
    const options = {
      signal: controller.signal,
      onProgress: (news, some) => this.#note(id, some?.map((i) => messageIds[i]) ?? messageIds, news),
      onAnswer: (answer) => messageIds.forEach((each) => this.#app.live.set(each, answer)),
      onStream: (name) => this.#noteStream(id, begun, name),
      onLost: () => this.#app.lose(t("common.unreachable")),
    };
    let end = { state: "done" };
    let toolbox = null;
    try {
      await this.#app.many?.ready();
      options.isDurable = Boolean(this.#app.state.props?.durable);
      if (this.#app.tools.isUsed(chat)) toolbox = await this.#app.tools.box();
      if (toolbox) options.tools = toolbox.definitions(chat);
      for await (const messages of frames(generate(path, begun, options))) {
        this.#app.chats.change(id, (each) => tree.changeMessages(each, messages.map(({ stream: _, ...fields }) => fields)));
      }
    } catch (error) {
      end = isOld && error.type === FORGOTTEN ? { state: "interrupted", error: CLOSED } : this.#failed(error);
    } finally {
      this.#finish(id, controller);
      this.#app.live.forget(messageIds);
      const { messages } = this.#app.chats.get(id);
      const nCtx = this.#app.state.props?.default_generation_settings?.n_ctx;
      const endOf = (message) => (message.finish ? { state: "done", ...cutOf(message, nCtx) } : end);
      const ended = messageIds.map((each) => ({ id: each, stream: undefined, ...endOf(messages[each]) }));
      this.#app.chats.change(id, (each) => tree.changeMessages(each, ended), true);
      release();
    }
    if (toolbox && end.state === "done" && messageIds.length === 1) await this.#runAllowed(toolbox, id, messageIds[0]);
  }

  /** Has every page that opens the chat find the stream of an answer. */
  #noteStream(id, begun, name) {
    const noted = begun.map(({ id: each, start }, index) => ({ id: each, stream: { id: name, index, start } }));
    this.#app.chats.change(id, (chat) => tree.changeMessages(chat, noted), true);
  }

  /** Notes the progress of answers before their first token. */
  #note(id, messageIds, progress) {
    const news = Object.fromEntries(messageIds.map((each) => [each, progress]));
    this.#setRunning(id, { ...this.#app.state.running[id], ...news });
  }

  #setRunning(id, progress) {
    const { [id]: _, ...others } = this.#app.state.running;
    this.#app.set({ running: progress ? { ...others, [id]: progress } : others });
  }

  #failed(error) {
    if (error.name === "AbortError") return { state: "stopped" };
    if (error.status === undefined) throw error;
    if (isField(error.field)) this.#app.setFieldError(error.field, error.message);
    if (error.wantsKey) this.#app.set({ server: "locked" });
    if (!error.isUnreachable && error.type !== FORGOTTEN) return { state: "failed", ...failureOf(error) };
    if (error.isUnreachable) this.#app.lose(error.message);
    return { state: "interrupted", error: t("app.lost"), remedies: ["again"] };
  }
}

/** Returns a message as it is when its answer begins; `start`: how much of it the model did not write. */
function startOf(message) {
  return { ...message, start: message.content.length, state: "writing", error: "", finish: "" };
}

/** Returns a message as it was when its answer began. */
function asBegun({ content, start, ...message }) {
  return { ...message, content: content.slice(0, start), start, reasoning: undefined, ms: undefined, toolCalls: undefined, tokens: undefined };
}

function titled(chat) {
  return { ...chat, title: tree.titleOf(chat) };
}

function onlyFull(lists) {
  return Object.fromEntries(Object.entries(lists).filter(([, list]) => list?.length));
}
