// The models of a server that has many: which one the page talks to, and the states of all.

import { stateText } from "./answer.js";
import { ask, lastModel, setModel } from "./api.js";
import { pathOf } from "./tree.js";
import { t } from "./more_text.js";

const LOOK_MS = 300; // between two looks at a model that is loading

/** Whether a row of `/v1/models` is a model to talk to. */
export function isForChat({ kind, status }) {
  return status.value !== "downloading" && kind === "chat";
}

export function isUp(status) {
  return ["loaded", "sleeping"].includes(status.value);
}

export class ManyModels {
  #app;
  #set;
  #props = {}; // of the server

  /** `set` changes the state of the page. */
  constructor(app, set) {
    this.#app = app;
    this.#set = set;
  }

  /** Chooses the model that was last used here, or one that is loaded. Returns whether there is one. A visit loads nothing:
   * until the model is needed, the page has the properties of the server for it. */
  async begin(props) {
    const models = (await this.refresh()).filter(isForChat);
    const found = models.find(({ id }) => id === lastModel()) ?? models.find(({ status }) => isUp(status));
    const chosen = found ?? models[0];
    this.#props = props;
    if (chosen) await this.#choose(chosen);
    else this.#set({ server: "loading", reason: t("models.none") });
    return Boolean(chosen);
  }

  async #choose({ id, name, size, status, architecture: { input_modalities: inputs } }) {
    if (isUp(status)) return this.use(id);
    setModel(id);
    const modalities = { vision: inputs.includes("image"), audio: inputs.includes("audio") };
    return this.#app.meet({ ...this.#props, model_alias: id, model_name: name, model_size: size, modalities });
  }

  /** Loads the chosen model if the page has not met it yet. */
  async ready() {
    if (this.#app.state.props?.role === "router") await this.use(lastModel());
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
      if (isUp(status) || name !== lastModel()) break;
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
    const found = this.#app.state.models.find(({ id }) => id === name);
    if (found && name !== lastModel()) this.#choose(found);
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
