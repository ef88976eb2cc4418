// Pauses answers that are being generated.

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

  /** Returns whether the answer was paused. */
  async pause(messageId) {
    if (await this.#control(messageId, "pause")) this.#paused.add(messageId);
    return this.isPaused(messageId);
  }

  async resume(messageId) {
    if (this.#paused.delete(messageId)) await this.#control(messageId, "resume");
  }

  async #control(messageId, action) {
    const id = this.#ids.get(messageId);
    if (!id) return false;
    const { success } = await ask("/v1/chat/completions/control", { json: { id, action } });
    return success;
  }
}
