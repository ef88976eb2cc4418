// The list of chats: new, search, rename, remove, import and export.

import { html, useRef, useState } from "../html.js";
import { titleOf } from "../tree.js";
import { useFocus } from "./focus.js";
import { Icon, IconButton } from "./icon.js";
import { nextTheme } from "../theme.js";

const DAY_MS = 86_400_000;

export function Sidebar({ app, state, isOpen, onClose }) {
  const { chats, chat, running, query, nLocal } = state;
  const pick = (action) => (event) => {
    event?.preventDefault();
    action();
    onClose();
  };
  return html`<nav class="sidebar ${isOpen ? "open" : ""}" aria-label="Chats">
    <div class="sidebar-head">
      <a class="brand" href="./">Corral</a>
      <${IconButton} icon="close" label="Close the list" onClick=${onClose} class="plain icon-button phone-only" />
    </div>
    <button type="button" class="new-chat" onClick=${pick(() => app.newChat())}><${Icon} name="plus" /> New chat</button>
    <label class="search">
      <${Icon} name="search" /><span class="unseen">Search chats</span>
      <input
        id="search"
        type="search"
        placeholder="Search chats"
        value=${query}
        onInput=${(event) => app.search(event.target.value)}
      />
    </label>
    <ul class="chats">
      ${groups(chats).map(
        ([name, members]) => html`<li key=${name}>
          <h2>${name}</h2>
          <ul>
            ${members.map(
              (each) =>
                html`<${Entry}
                  key=${each.id}
                  entry=${each.id === chat.id ? { ...each, title: titleOf(chat) } : each}
                  isShown=${each.id === chat.id}
                  isRunning=${Boolean(running[each.id])}
                  app=${app}
                  onPick=${pick(() => app.openChat(each.id))}
                />`,
            )}
          </ul>
        </li>`,
      )}
      ${chats.length === 0 && html`<li class="soft empty">${query ? "Nothing found." : "Chats appear here."}</li>`}
    </ul>
    ${nLocal > 0 &&
    html`<p class="soft hint">
      ${nLocal} ${nLocal === 1 ? "chat is" : "chats are"} only in this browser.
      <button type="button" class="plain" onClick=${() => app.moveToServer()}>Move to the server</button>
    </p>`}
    <${Foot} app=${app} isReady=${state.props !== null} hasChats=${chats.length > 0} />
  </nav>`;
}

function Foot({ app, isReady, hasChats }) {
  const file = useRef(null);
  const read = async (event) => {
    const [chosen] = event.target.files;
    if (chosen) await app.importChats(await chosen.text());
    event.target.value = "";
  };
  return html`<div class="sidebar-foot">
    <${IconButton} icon="upload" label="Import chats" disabled=${!isReady} onClick=${() => file.current.click()} />
    <input ref=${file} type="file" accept="application/json,.json" hidden disabled=${!isReady} onChange=${read} aria-label="File with chats" />
    <${IconButton} icon="download" label="Export all chats" disabled=${!hasChats} onClick=${() => app.exportChats()} />
    <${IconButton} icon="theme" label="Light, dark or system theme" onClick=${nextTheme} />
    <a class="icon-button" href="monitor" title="Monitor" aria-label="Monitor"><${Icon} name="chart" /></a>
  </div>`;
}

function Entry({ entry, isShown, isRunning, app, onPick }) {
  const [isRenaming, setRenaming] = useState(false);
  const rename = (title) => {
    setRenaming(false);
    if (title.trim() && title !== entry.title) app.rename(entry.id, title.trim());
  };
  if (isRenaming) {
    return html`<li><${TitleField} title=${entry.title} onDone=${rename} onCancel=${() => setRenaming(false)} /></li>`;
  }
  return html`<li class="entry">
    <a href="#/chat/${entry.id}" aria-current=${isShown ? "page" : undefined} onClick=${onPick} title=${entry.title}>
      ${isRunning && html`<span class="writing" role="img" aria-label="Answer in progress"></span>`}
      ${entry.title || "New chat"}
    </a>
    <span class="entry-tools">
      <${IconButton} icon="edit" label="Rename" onClick=${() => setRenaming(true)} />
      <${IconButton} icon="download" label="Export" onClick=${() => app.exportChats([entry.id])} />
      <${IconButton} icon="trash" label="Delete" onClick=${() => confirmed(entry) && app.removeChat(entry.id)} />
    </span>
  </li>`;
}

function TitleField({ title, onDone, onCancel }) {
  const field = useFocus();
  const onKeyDown = (event) => {
    if (event.key === "Enter") onDone(event.target.value);
    if (event.key === "Escape") onCancel();
  };
  return html`<input
    ref=${field}
    aria-label="Chat title"
    value=${title}
    onBlur=${(event) => onDone(event.target.value)}
    onKeyDown=${onKeyDown}
  />`;
}

function confirmed({ title }) {
  return confirm(`Delete the chat "${title || "New chat"}"? This cannot be undone.`);
}

/** Groups chats by the time of their last change. */
function groups(chats) {
  const today = new Date().setHours(0, 0, 0, 0);
  const ages = [
    ["Today", today],
    ["Yesterday", today - DAY_MS],
    ["Last seven days", today - 7 * DAY_MS],
    ["Earlier", -Infinity],
  ];
  const named = new Map();
  for (const chat of chats) {
    const [name] = ages.find(([, since]) => chat.updatedAt >= since);
    named.set(name, [...(named.get(name) ?? []), chat]);
  }
  return [...named];
}
