// Which model it is, in words.

import { bytes, t } from "./text.js";

/** Returns the name of the model that the page talks to, as its file says. `models`: of a server that has many; two files
 * may say the same. */
export function modelName({ props, models }) {
  const { model_name: name, model_alias: alias = "" } = props ?? {};
  return name && models.filter((each) => each.name === name).length < 2 ? name : plainName(alias);
}

/** Returns the name of the model that has written a message. */
export function authorOf({ role, model }, state) {
  if (role !== "assistant" || !model) return "";
  return model === state.props?.model_alias ? modelName(state) : plainName(model);
}

/** Returns the encoding of its weights: what follows architecture and parameters in `llama 135M Q4_1`. */
export function encodingOf(props) {
  return (props?.model_ftype ?? "").split(" ").slice(2).join(" ").replace(/^all /, "");
}

/** Returns what is known of the model besides its name. */
export function detailsOf(props) {
  const nCtx = props?.default_generation_settings?.n_ctx;
  const size = props?.model_size ? bytes(props.model_size) : "";
  return [encodingOf(props), size, nCtx ? t("thread.context", { n: nCtx }) : "", t("thread.here")].filter(Boolean);
}

function plainName(path) {
  return path.split(/[\\/]/).at(-1).replace(/\.gguf$/, "");
}
