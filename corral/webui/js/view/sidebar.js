// The list of chats: new, search, rename, remove, import and export.

import { html, useEffect, useRef, useState } from "../html.js";
import { titleOf } from "../tree.js";
import { useFocus } from "./focus.js";
import { Icon, IconButton, TextButton } from "./icon.js";
import { nextTheme } from "../theme.js";
import { t } from "../text.js";

const DAY_MS = 86_400_000;
const N_SHOWN = 100; // chats of a group: more would make every change slow
const CLOSED = "corral.folders.closed";

export function Sidebar({ app, state, isOpen, onClose }) {
  const { chats, chat, running, query, nLocal } = state;
  const [nShown, setShown] = useState(N_SHOWN);
  useEffect(() => setShown(N_SHOWN), [query]);
  const shown = groups(chats, nShown);
  const pick = (action) => (event) => {
    event?.preventDefault();
    action();
    onClose();
  };
  return html`<nav class="sidebar ${isOpen ? "open" : ""}" aria-label=${t("app.chats")}>
    <div class="sidebar-head">
      <a class="brand" href="./">Corral</a>
      <${IconButton} icon="close" label=${t("sidebar.closeList")} onClick=${onClose} class="plain icon-button phone-only" />
    </div>
    <button type="button" class="new-chat" onClick=${pick(() => app.chats.create())}><${Icon} name="plus" /> ${t("sidebar.newChat")}</button>
    <label class="search">
      <${Icon} name="search" /><span class="unseen">${t("sidebar.search")}</span>
      <input
        id="search"
        type="search"
        placeholder=${t("sidebar.search")}
        value=${query}
        onFocus=${() => app.chats.find(" ").catch(() => {}) /* the first search has to read all chats */}
        onInput=${(event) => app.chats.search(event.target.value)}
      />
    </label>
    <ul class="chats">
      ${shown.map(
        ({ key, name, members }) => html`<${Group} key=${key} name=${name} isFolder=${key === `folder ${name}`}>
            ${members.map(
              (each) =>
                html`<${Entry}
                  key=${each.id}
                  entry=${each.id === chat.id ? { ...each, title: titleOf(chat) } : each}
                  isShown=${each.id === chat.id}
                  isRunning=${Boolean(running[each.id])}
                  app=${app}
                  onPick=${pick(() => app.chats.open(each.id))}
                />`,
            )}
        </${Group}>`,
      )}
      ${shown.some(({ isCut }) => isCut) &&
      html`<li><button type="button" class="plain" onClick=${() => setShown(nShown + N_SHOWN)}>${t("sidebar.showMore", { n: chats.length })}</button></li>`}
      ${chats.length === 0 && html`<li class="soft empty">${query ? t("common.nothingFound") : t("sidebar.empty")}</li>`}
    </ul>
    ${nLocal > 0 &&
    html`<p class="soft hint">
      ${t("sidebar.onlyHere", { n: nLocal })}
      <button type="button" class="plain" onClick=${() => app.chats.moveToServer()}>${t("sidebar.moveToServer")}</button>
    </p>`}
    <${Foot} app=${app} isReady=${state.props !== null} hasChats=${chats.length > 0} />
  </nav>`;
}

/** Chats of an age, or in a folder that can be closed. */
function Group({ name, isFolder, children }) {
  if (!isFolder) return html`<li><h2>${name}</h2><ul>${children}</ul></li>`;
  const closed = (localStorage.getItem(CLOSED) ?? "").split("\n");
  const onClick = ({ currentTarget }) => {
    const others = closed.filter((each) => each !== name);
    const isClosing = currentTarget.parentElement.open; // `toggle` would come later, perhaps after the page is closed
    localStorage.setItem(CLOSED, (isClosing ? [...others, name] : others).join("\n"));
  };
  return html`<li class="folder">
    <details open=${!closed.includes(name)}>
      <summary onClick=${onClick}><${Icon} name="folder" /> ${name}</summary>
      <ul>${children}</ul>
    </details>
  </li>`;
}

function Foot({ app, isReady, hasChats }) {
  const file = useRef(null);
  const read = async (event) => {
    const [chosen] = event.target.files;
    if (chosen) await app.chats.importFrom(await chosen.text());
    event.target.value = "";
  };
  return html`<div class="sidebar-foot">
    <${TextButton} icon="upload" label=${t("sidebar.import")} disabled=${!isReady} onClick=${() => file.current.click()} />
    <input ref=${file} type="file" accept="application/json,.json" hidden disabled=${!isReady} onChange=${read} aria-label=${t("sidebar.file")} />
    <${TextButton} icon="download" label=${t("sidebar.exportAll")} disabled=${!hasChats} onClick=${() => app.chats.exportAs()} />
    <${TextButton} icon="theme" label=${t("sidebar.theme")} onClick=${nextTheme} />
    <a class="text-button" href="monitor"><${Icon} name="chart" /><span class="label">${t("sidebar.monitor")}</span></a>
  </div>`;
}

function Entry({ entry, isShown, isRunning, app, onPick }) {
  const [isRenaming, setRenaming] = useState(false);
  const rename = (title) => {
    setRenaming(false);
    if (title.trim() && title !== entry.title) app.chats.changeFields(entry.id, { title: title.trim() });
  };
  if (isRenaming) {
    return html`<li><${TitleField} title=${entry.title} onDone=${rename} onCancel=${() => setRenaming(false)} /></li>`;
  }
  return html`<li class="entry">
    <a href="#/chat/${entry.id}" aria-current=${isShown ? "page" : undefined} onClick=${onPick} title=${entry.title} dir="auto">
      ${isRunning && html`<span class="writing" role="img" aria-label=${t("sidebar.running")}></span>`}
      ${entry.title || t("sidebar.newChat")}
    </a>
    <span class="entry-tools">
      <${IconButton} icon="edit" label=${t("sidebar.rename")} onClick=${() => setRenaming(true)} />
      <${IconButton} icon="download" label=${t("sidebar.export")} onClick=${() => app.chats.exportAs([entry.id])} />
      <${IconButton} icon="more" label=${t("sidebar.more")} onClick=${() => app.openPanel("chat_menu", { id: entry.id })} />
      <${IconButton} icon="trash" label=${t("common.delete")} onClick=${() => app.chats.remove(entry.id)} />
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
    aria-label=${t("sidebar.title")}
    defaultValue=${title}
    onBlur=${(event) => onDone(event.target.value)}
    onKeyDown=${onKeyDown}
  />`;
}

/** Groups chats, the first of each group: pinned ones, folders by name, the others by the time of their last change. */
function groups(chats, nShown) {
  const byKey = new Map();
  for (const chat of chats) {
    const group = groupOf(chat);
    if (!byKey.has(group.key)) byKey.set(group.key, { ...group, members: [] });
    byKey.get(group.key).members.push(chat);
  }
  const sorted = [...byKey.values()].sort((a, b) => a.rank - b.rank || a.name.localeCompare(b.name));
  return sorted.map((group) => ({ ...group, members: group.members.slice(0, nShown), isCut: group.members.length > nShown }));
}

function groupOf({ pinned, folder, updatedAt }) {
  if (pinned) return { key: "pinned", name: t("sidebar.pinned"), rank: 0 };
  if (folder) return { key: `folder ${folder}`, name: folder, rank: 1 };
  const today = new Date().setHours(0, 0, 0, 0);
  const ages = [
    [t("sidebar.today"), today],
    [t("sidebar.yesterday"), today - DAY_MS],
    [t("sidebar.lastWeek"), today - 7 * DAY_MS],
    [t("sidebar.earlier"), -Infinity],
  ];
  const at = ages.findIndex(([, since]) => updatedAt >= since);
  return { key: ages[at][0], name: ages[at][0], rank: 2 + at };
}
