// A choice of the model, where the server has several.

import { html } from "../html.js";

export function ModelChoice({ app, state: { models, props } }) {
  return html`<select class="model" aria-label="Model" onChange=${(event) => app.useModel(event.target.value)}>
    ${models.map((name) => html`<option key=${name} value=${name} selected=${name === props?.model_alias}>${name}</option>`)}
  </select>`;
}
