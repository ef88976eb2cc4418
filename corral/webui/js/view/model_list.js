// All models of the server: sizes and states, load and unload, downloads with their progress.

import { html, useEffect, useState } from "../html.js";
import { isForChat } from "../many_models.js";
import { loadOwnStyle } from "../style.js";
import { useModal } from "./modal.js";
import { statusText } from "./model_text.js";
import { bytes, t } from "../more_text.js";

const LOOK_MS = 700;
const IN_MEMORY = ["loading", "loaded", "downloading"];

await loadOwnStyle("models");

export function ModelList({ app, models, onCompare, onClose }) {
  const dialog = useModal();
  useEffect(() => {
    app.many.refresh();
    const timer = setInterval(() => app.many.refresh(), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  const nUsable = models.filter(isForChat).length;
  return html`<dialog ref=${dialog} class="models" onClose=${onClose} aria-labelledby="models-title">
    <h2 id="models-title">${t("models.title")}</h2>
    <table>
      <thead>
        <tr>
          <th>${t("models.model")}</th><th>${t("models.file")}</th><th>${t("models.memory")}</th><th>${t("models.state")}</th><td></td>
        </tr>
      </thead>
      <tbody>
        ${models.map((row) => html`<${Row} key=${row.id} row=${row} app=${app} />`)}
      </tbody>
    </table>
    <${Download} app=${app} />
    <form method="dialog" class="row end">
      ${nUsable > 1 && html`<button type="button" onClick=${onCompare}>${t("models.compareTwo")}</button>`}
      <button class="primary">${t("common.close")}</button>
    </form>
  </dialog>`;
}

function Row({ row: { id, kind, size, memory, status }, app }) {
  const isIn = IN_MEMORY.includes(status.value);
  const act = () => (isIn ? app.many.unload(id) : app.many.load(id));
  const label = status.value === "downloading" ? t("common.cancel") : isIn ? t("models.unload") : t("models.load");
  return html`<tr data-state=${status.value}>
    <th scope="row">${id}${kind && kind !== "chat" && html` <span class="soft">${t(`kind.${kind}`)}</span>`}</th>
    <td>${size ? bytes(size) : ""}</td>
    <td>${memory?.needed ? bytes(memory.needed) : ""}</td>
    <td class=${status.failed ? "error" : ""}>
      ${status.progress && html`<progress max="1" value=${status.progress.value}></progress>`} ${statusText(status)}
    </td>
    <td><button type="button" aria-label=${t("models.action", { action: label, name: id })} onClick=${act}>${label}</button></td>
  </tr>`;
}

function Download({ app }) {
  const [name, setName] = useState("");
  const begin = (event) => {
    event.preventDefault();
    app.many.download(name.trim()).then(() => setName(""));
  };
  return html`<form class="row" onSubmit=${begin}>
    <label>
      ${t("models.toDownload")}
      <input required placeholder="user/model:Q4_K_M" value=${name} onInput=${(event) => setName(event.target.value)} />
    </label>
    <button>${t("models.download")}</button>
  </form>`;
}
