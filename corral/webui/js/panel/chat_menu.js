// More actions on a chat: pin it, put it into a folder, share it, let the model write its title.

import { html, useEffect, useState } from "../html.js";
import { Icon, IconButton } from "../view/icon.js";
import { load } from "../view/lazy.js";
import { useModal } from "../view/modal.js";
import { t } from "../more_text.js";

export function Panel({ app, state, id, onClose }) {
  const dialog = useModal();
  const [head, setHead] = useState(null);
  const [folders, setFolders] = useState([]);
  useEffect(() => {
    app.chats.find("").then((chats) => {
      setHead(chats.find((each) => each.id === id));
      setFolders([...new Set(chats.map(({ folder }) => folder).filter(Boolean))].sort());
    }, onClose);
  }, [id, state.chats]);
  const act = (action) => async () => {
    onClose();
    await action().catch((error) => app.tell(error.message, "bad"));
  };
  const move = (event) => {
    event.preventDefault();
    const folder = new FormData(event.target).get("folder").trim();
    onClose();
    app.chats.changeFields(id, { folder });
  };
  return html`<dialog ref=${dialog} class="chat-menu" aria-labelledby="chat-menu-title" onClose=${onClose}>
    <header class="panel-head">
      <h2 id="chat-menu-title">${head?.title || t("menu.chat")}</h2>
      <${IconButton} icon="close" label=${t("common.close")} onClick=${onClose} />
    </header>
    ${head &&
    html`<div class="menu">
        <button type="button" onClick=${act(() => app.chats.changeFields(id, { pinned: !head.pinned }))}>
          <${Icon} name="pin" /> ${head.pinned ? t("menu.unpin") : t("menu.pin")}
        </button>
        <button type="button" onClick=${act(() => share(app, id))}><${Icon} name="share" /> ${t("menu.share")}</button>
        <button type="button" onClick=${act(() => title(app, id))}><${Icon} name="edit" /> ${t("menu.title")}</button>
      </div>
      <form onSubmit=${move}>
        <label class="field">
          ${t("menu.folder")}
          <input name="folder" list="folders" maxlength="100" placeholder=${t("menu.noFolder")} defaultValue=${head.folder} />
        </label>
        <datalist id="folders">${folders.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
        <p class="row end"><button class="primary">${t("menu.move")}</button></p>
      </form>`}
  </dialog>`;
}

async function title(app, id) {
  const { writeTitle } = await load("../titles.js");
  await writeTitle(app, id);
}

async function share(app, id) {
  const { shareChat } = await load("../share.js");
  await shareChat(await app.chats.load(id));
}
