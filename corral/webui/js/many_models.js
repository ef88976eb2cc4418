// The models of a server that has many: which one the page talks to, and the states of all.

import { stateText } from "./answer.js";
import { ask, lastModel, setModel } from "./api.js";
import { pathOf } from "./tree.js";
import { t } from "./more_text.js";

const LOOK_MS = 300; // between two looks at a model that is loading

export class ManyModels {
  #app;
  #set;

  /** `set` changes the state of the page. */
  constructor(app, set) {
    this.#app = app;
    this.#set = set;
  }

  /** Chooses the model that was last used here, or one that is loaded. Returns whether there is one. */
  async begin() {
    const models = (await this.refresh()).filter(({ status }) => status.value !== "downloading");
    const found = models.find(({ id }) => id === lastModel()) ?? models.find(({ status }) => status.value === "loaded");
    const chosen = found ?? models[0];
    if (chosen) await this.use(chosen.id);
    else this.#set({ server: "loading", reason: t("models.none") });
    return Boolean(chosen);
  }

  async refresh() {
    const { data } = await ask("/v1/models");
    this.#set({ models: data });
    return data;
  }

  /** Talks to this model from now on; the server loads it if necessary. */
  async use(name) {
    setModel(name);
    for (let isAsked = false; ; isAsked = true) {
      const status = (await this.refresh()).find(({ id }) => id === name)?.status ?? {};
      if (["loaded", "sleeping"].includes(status.value) || name !== lastModel()) break;
      if (isAsked && status.failed) return this.#set({ server: "down", reason: status.reason });
      if (!isAsked) await this.load(name);
      this.#set({ server: "loading", reason: `${name}: ${stateText(status)}` });
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return this.#app.connect();
  }

  /** Goes back to the model that wrote the last answer of a chat. */
  recall(chat) {
    const name = pathOf(chat).findLast(({ model }) => model)?.model;
    const isThere = this.#app.state.models.some(({ id }) => id === name);
    if (isThere && name !== lastModel()) this.use(name);
  }

  load(name) {
    return this.#order("/models/load", name);
  }

  /** Also cancels a download. */
  unload(name) {
    return this.#order("/models/unload", name);
  }

  download(name) {
    return this.#order("/models", name);
  }

  async #order(path, model) {
    try {
      await ask(path, { json: { model } });
    } catch (error) {
      this.#app.tell(error.message, "bad");
    }
    return this.refresh();
  }
}
