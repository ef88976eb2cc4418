// Buttons of an answer that is being generated.

import { html, useState } from "../html.js";
import { t } from "../more_text.js";
import { IconButton } from "./icon.js";

export function LiveActions({ message, app }) {
  const [isPaused, setPaused] = useState(app.live.isPaused(message.id));
  const hasText = Boolean(message.content || message.reasoning);
  const toggle = async () => {
    if (isPaused) await app.live.resume(message.id);
    else await app.live.pause(message.id);
    setPaused(app.live.isPaused(message.id));
  };
  const edit = async () => {
    setPaused(await app.live.pause(message.id));
    app.openEditor(message.id);
  };
  return html`<span class="live actions">
    <${IconButton} icon=${isPaused ? "go" : "pause"} label=${isPaused ? t("message.resume") : t("message.pause")} disabled=${!hasText} onClick=${toggle} />
    <${IconButton} icon="fork" label=${t("message.fork")} disabled=${!message.content} onClick=${() => app.writer.fork(message.id)} />
    <${IconButton} icon="edit" label=${t("message.editWords")} disabled=${!message.content} onClick=${edit} />
  </span>`;
}
