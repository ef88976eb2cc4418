// Tools as far as the page knows them before one is used: whether any is on, and the results of calls that wait for others.

const KEY = "corral.tools"; // in local storage: the configuration of `tools/toolbox.js`

export class ToolUse {
  #app;
  #box = null;

  constructor(app) {
    this.#app = app;
  }

  /** Returns whether a tool is on in this chat: by its own choice, or that for all chats. */
  isUsed({ toolsOn }) {
    const on = Array.isArray(toolsOn) ? toolsOn : onInAll();
    return on?.length > 0;
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

function onInAll() {
  try {
    return JSON.parse(localStorage.getItem(KEY))?.on;
  } catch {
    return [];
  }
}
