// A quick switch of reasoning, where the model's chat template knows one.

import { html } from "../html.js";
import { t } from "../more_text.js";

const LEVELS = {
  "": t("message.reasoning"),
  none: t("reasoning.none"),
  low: t("reasoning.low"),
  medium: t("reasoning.medium"),
  high: t("reasoning.high"),
};

/** Returns the levels that the template of the server's model has. */
export function levelsOf(props) {
  const template = props?.chat_template ?? "";
  if (template.includes("reasoning_effort")) return Object.keys(LEVELS);
  return /enable_thinking|<think>/.test(template) ? ["", "none"] : [];
}

export function ReasoningSwitch({ app, chat, levels }) {
  if (!levels.length) return null; // another model was chosen
  const value = chat.settings.reasoning_effort ?? "";
  const change = (event) => app.setSetting("reasoning_effort", event.target.value || undefined);
  return html`<select class="reasoning-switch" aria-label=${t("message.reasoning")} value=${value} onChange=${change}>
    ${levels.map((level) => html`<option key=${level} value=${level}>${LEVELS[level]}</option>`)}
  </select>`;
}
