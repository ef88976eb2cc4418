// Tools as far as the page knows them before one is used: whether any is on, and the results of calls that wait for others.

const KEY = "corral.tools"; // in local storage while a tool is on

export class ToolUse {
  #app;
  #box = null;

  constructor(app) {
    this.#app = app;
  }

  get isUsed() {
    return localStorage.getItem(KEY) !== null;
  }

  /** Returns the tools that the model may call; `isFresh`: look for them again. */
  box(isFresh = false) {
    if (isFresh) this.#box = null;
    this.#box ??= import("./tools/toolbox.js").then(({ Toolbox }) => new Toolbox(this.#app.state.props).load());
    return this.#box;
  }

  forget() {
    this.#box = null;
  }

  changed() {
    this.#app.set({});
  }

  setRun(messageId, i, run) {
    const { callRuns } = this.#app.state;
    this.#app.set({ callRuns: { ...callRuns, [messageId]: { ...callRuns[messageId], [i]: run } } });
  }
}
