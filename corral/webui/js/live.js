// Actions on answers that are being generated: pause, fork, edit.

import { ask } from "./api.js";

/** Knows the server's ids of running answers, by message. */
export class LiveAnswers {
  #ids = new Map();
  #paused = new Set();

  set(messageId, answerId) {
    this.#ids.set(messageId, answerId);
  }

  forget(messageIds) {
    for (const id of messageIds) {
      this.#ids.delete(id);
      this.#paused.delete(id);
    }
  }

  has(messageId) {
    return this.#ids.has(messageId);
  }

  isPaused(messageId) {
    return this.#paused.has(messageId);
  }

  /** The body of a request that answers a second time. */
  forkOf(messageId) {
    return { id: this.#ids.get(messageId), action: "fork" };
  }

  /** Returns whether the answer was paused. */
  async pause(messageId) {
    if (await this.#control(messageId, "pause")) this.#paused.add(messageId);
    return this.isPaused(messageId);
  }

  async resume(messageId) {
    if (this.#paused.delete(messageId)) await this.#control(messageId, "resume");
  }

  /** Replaces the end of an answer; `start`: what of it the model did not write. Returns whether that is possible. */
  async edit(messageId, { content }, text, start = "") {
    const [before, after, given] = [content, text, start].map((each) => [...each]);
    const n = before.findIndex((letter, i) => letter !== after[i]);
    const nKept = n < 0 ? before.length : n;
    if (nKept < given.length) return false;
    this.#paused.delete(messageId);
    return this.#control(messageId, "edit", { keep: nKept - given.length, text: after.slice(nKept).join("") });
  }

  async #control(messageId, action, fields = {}) {
    const id = this.#ids.get(messageId);
    if (!id) return false;
    const { success } = await ask("/v1/chat/completions/control", { json: { id, action, ...fields } });
    return success;
  }
}
