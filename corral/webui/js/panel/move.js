// Puts one chat or several into a folder, or out of it.

import { html, useEffect, useState } from "../html.js";
import { IconButton } from "../view/icon.js";
import { useModal } from "../view/modal.js";
import { t } from "../more_text.js";

export function Panel({ app, ids, onClose }) {
  const dialog = useModal();
  const [heads, setHeads] = useState(null);
  useEffect(() => {
    app.chats.find("").then(setHeads, onClose);
  }, []);
  const before = new Map(heads?.filter(({ id }) => ids.includes(id)).map(({ id, folder = "" }) => [id, folder]));
  const folders = [...new Set(heads?.map(({ folder }) => folder).filter(Boolean))].sort();
  const move = async (event) => {
    event.preventDefault();
    const folder = new FormData(event.target).get("folder").trim();
    onClose();
    app.set({ selected: null });
    try {
      await app.chats.move(ids.map((id) => [id, folder]));
      app.tell(folder ? t("menu.moved", { n: ids.length, folder }) : t("menu.movedOut", { n: ids.length }), "info", { undo: () => app.chats.move([...before]) });
    } catch (error) {
      app.tell(error.message, "bad");
    }
  };
  return html`<dialog ref=${dialog} class="chat-menu" aria-labelledby="move-title" onClose=${onClose}>
    <header class="panel-head">
      <h2 id="move-title">${t("menu.moveTo", { n: ids.length })}</h2>
      <${IconButton} icon="close" label=${t("common.close")} onClick=${onClose} />
    </header>
    ${heads &&
    html`<form onSubmit=${move}>
      <label class="field">
        ${t("menu.folder")}
        <input name="folder" list="folders" maxlength="100" autofocus placeholder=${t("menu.noFolder")} defaultValue=${before.get(ids[0])} />
      </label>
      <datalist id="folders">${folders.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
      <p class="row end"><button class="primary">${t("menu.move")}</button></p>
    </form>`}
  </dialog>`;
}
