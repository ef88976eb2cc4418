// The name of the model, or a choice where the server has several.

import { html } from "../html.js";
import { modelName } from "./thread.js";

export function ModelChoice({ app, state }) {
  const { models, props } = state;
  if (models.length < 2) return html`<span class="model soft" title=${props?.model_path ?? ""}>${modelName(props)}</span>`;
  return html`<select
    class="model"
    aria-label="Model"
    value=${props?.model_alias ?? ""}
    onChange=${(event) => app.useModel(event.target.value)}
  >
    ${models.map((name) => html`<option key=${name} value=${name} selected=${name === props?.model_alias}>${name}</option>`)}
  </select>`;
}
