// The palette: every command, prompt and chat by name, from the keyboard.

import { html, useEffect, useRef, useState } from "../html.js";
import { useModal } from "../view/modal.js";
import { commandsOf } from "./commands.js";
import { t } from "../more_text.js";

const MAX_CHATS = 20;

export function Panel({ app, state, onOpen, onClose }) {
  const dialog = useModal();
  const list = useRef(null);
  const [query, setQuery] = useState("");
  const [chats, setChats] = useState([]);
  const [at, setAt] = useState(0);
  useEffect(() => {
    let isOld = false;
    const show = (found) => isOld || setChats(found.slice(0, MAX_CHATS));
    app.chats.find(query.trim()).then(show, () => show([]));
    return () => (isOld = true);
  }, [query]);
  const items = [...matching(commandsOf(app, state, onOpen), query), ...chats.map((chat) => chatItem(app, chat))];
  const chosen = Math.min(at, items.length - 1);
  useEffect(() => list.current.children[chosen]?.scrollIntoView({ block: "nearest" }), [chosen]);
  const run = (item) => {
    onClose();
    item?.run();
  };
  const onKeyDown = (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    if (event.key === "Enter" && !event.isComposing) run(items[chosen]);
    else if (moves[event.key]) setAt(Math.max(0, Math.min(items.length - 1, chosen + moves[event.key])));
    else return;
    event.preventDefault();
  };
  return html`<dialog ref=${dialog} class="palette" aria-label=${t("palette.label")} onClose=${onClose}>
    <input
      role="combobox"
      aria-label=${t("palette.field")}
      aria-expanded="true"
      aria-controls="palette-list"
      aria-activedescendant=${items.length ? `palette-${chosen}` : undefined}
      placeholder=${t("palette.placeholder")}
      autofocus
      value=${query}
      onInput=${(event) => (setQuery(event.target.value), setAt(0))}
      onKeyDown=${onKeyDown}
    />
    <ul id="palette-list" role="listbox" aria-label=${t("palette.found")} ref=${list}>
      ${items.map(
        (item, i) => html`<li
          key=${item.key}
          id="palette-${i}"
          role="option"
          aria-selected=${i === chosen}
          onClick=${() => run(item)}
          onPointerMove=${() => setAt(i)}
        >
          <span class="name">${item.name}</span><span class="soft hint">${item.hint}</span>
        </li>`,
      )}
    </ul>
    ${items.length === 0 && html`<p class="soft">${t("common.nothingFound")}</p>`}
  </dialog>`;
}

function chatItem(app, { id, title, folder }) {
  return { key: id, name: title || t("sidebar.newChat"), hint: folder || t("palette.chat"), run: () => app.chats.open(id) };
}

/** Returns the commands that contain every word, those that begin with the first one before others. */
function matching(commands, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  const rank = ({ name }) => (name.toLowerCase().startsWith(words[0] ?? "") ? 0 : 1);
  return found.sort((a, b) => rank(a) - rank(b));
}
