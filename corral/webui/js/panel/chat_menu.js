// The menu of a chat: all that can be done with it.

import { html, useEffect, useRef, useState } from "../html.js";
import { Icon, IconButton } from "../view/icon.js";
import { load } from "../view/lazy.js";
import { useModal } from "../view/modal.js";
import { t } from "../more_text.js";

const EDGE_PX = 8;
const NARROW = matchMedia("(max-width: 50rem)"); // there the list covers the page

/** `at`: the rectangle of the button that has opened it, if there is one. */
export function Panel({ app, id, at, onOpen, onClose }) {
  const dialog = useModal();
  const menu = useRef(null);
  const [head, setHead] = useState(null);
  useEffect(() => {
    app.chats.find("").then((chats) => setHead(chats.find((each) => each.id === id)), onClose);
  }, [id]);
  useEffect(() => {
    if (at && !NARROW.matches) place(dialog.current, at);
    menu.current?.firstElementChild.focus();
  }, [head]);
  const act = (action) => async () => {
    onClose();
    await action()?.catch((error) => app.tell(error.message, "bad"));
  };
  const inList = (changes) => () => {
    if (NARROW.matches) onOpen("list");
    app.set(changes);
  };
  const items = head && [
    ["edit", t("sidebar.rename"), inList({ renaming: id })],
    ["pin", head.pinned ? t("menu.unpin") : t("menu.pin"), () => app.chats.changeFields(id, { pinned: !head.pinned })],
    ["folder", t("menu.moveTo", { n: 1 }), () => app.openPanel("move", { ids: [id] })],
    ["again", t("menu.title"), () => title(app, id)],
    ["share", t("menu.share"), () => share(app, id)],
    ["download", t("sidebar.export"), () => app.chats.exportAs([id])],
    ["check", t("menu.select"), inList({ selected: [id] })],
    ["trash", t("common.delete"), () => app.chats.remove(id)],
  ];
  return html`<dialog
    ref=${dialog}
    class="chat-menu ${at ? "at" : ""}"
    aria-labelledby="chat-menu-title"
    onClose=${onClose}
    onPointerDown=${(event) => event.target === dialog.current && isOutside(event) && onClose()}
  >
    <header class="panel-head">
      <h2 id="chat-menu-title" dir="auto">${head?.title || t("menu.chat")}</h2>
      <${IconButton} icon="close" label=${t("common.close")} onClick=${onClose} />
    </header>
    ${items &&
    html`<div class="menu" ref=${menu} onKeyDown=${onArrow}>
      ${items.map(
        ([icon, name, run]) => html`<button type="button" key=${icon} class="plain ${icon === "trash" ? "bad" : ""}" onClick=${act(run)}>
          <${Icon} name=${icon} /> ${name}
        </button>`,
      )}
    </div>`}
  </dialog>`;
}

/** Puts the menu below its button, or as near as there is room. */
function place(dialog, at) {
  const { width, height } = dialog.getBoundingClientRect();
  const left = Math.max(EDGE_PX, Math.min(at.left, innerWidth - width - EDGE_PX));
  const top = Math.max(EDGE_PX, Math.min(at.bottom, innerHeight - height - EDGE_PX));
  Object.assign(dialog.style, { left: `${left}px`, top: `${top}px` });
}

function isOutside({ currentTarget, clientX, clientY }) {
  const { left, right, top, bottom } = currentTarget.getBoundingClientRect();
  return clientX < left || clientX > right || clientY < top || clientY > bottom;
}

function onArrow(event) {
  const items = [...event.currentTarget.children];
  const at = items.indexOf(document.activeElement);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  items[next % items.length].focus();
}

async function title(app, id) {
  const { writeTitle } = await load("../titles.js");
  await writeTitle(app, id);
}

async function share(app, id) {
  const { shareChat } = await load("../share.js");
  await shareChat(await app.chats.load(id));
}
