// The list of chats: new, search, import and export; what else can be done with a chat is in its menu.

import { html, useEffect, useRef, useState } from "../html.js";
import { titleOf } from "../tree.js";
import { Icon, IconButton, TextButton } from "./icon.js";
import { Lazy, load } from "./lazy.js";
import { nextTheme } from "../theme.js";
import { t } from "../text.js";

const DAY_MS = 86_400_000;
const N_SHOWN = 100; // chats of a group: more would make every change slow
const CLOSED = "corral.folders.closed";

export function Sidebar({ app, state, isOpen, onClose }) {
  const { chats, chat, running, query, found, nLocal, selected } = state;
  const [nShown, setShown] = useState(N_SHOWN);
  useEffect(() => setShown(N_SHOWN), [found]);
  const shown = found ? [{ ...cut(chats, nShown), key: "found" }] : groups(chats, nShown);
  const pick = (action) => (event) => {
    event?.preventDefault();
    action();
    onClose();
  };
  const goTo = (step) => load("./hits.js").then((hits) => hits.go(app, step), (error) => app.tell(error.message, "bad"));
  const open = async (id) => {
    await app.chats.open(id);
    if (query) goTo(0);
  };
  const onSearchKey = (event) => {
    if (event.key === "Enter" && query && !event.isComposing) goTo(event.shiftKey ? -1 : 1);
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
        onFocus=${() => app.chats.readTexts()}
        onInput=${(event) => app.chats.search(event.target.value)}
        onKeyDown=${onSearchKey}
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
                  state=${state}
                  app=${app}
                  onPick=${pick(() => open(each.id))}
                />`,
            )}
        </${Group}>`,
      )}
      ${shown.some(({ isCut }) => isCut) &&
      html`<li><button type="button" class="plain" onClick=${() => setShown(nShown + N_SHOWN)}>${t("sidebar.showMore", { n: chats.length })}</button></li>`}
      ${chats.length === 0 && html`<li class="soft empty">${found ? t("common.nothingFound") : t("sidebar.empty")}</li>`}
    </ul>
    ${nLocal > 0 &&
    html`<p class="soft hint">
      ${t("sidebar.onlyHere", { n: nLocal })}
      <button type="button" class="plain" onClick=${() => app.chats.moveToServer()}>${t("sidebar.moveToServer")}</button>
    </p>`}
    ${selected
      ? html`<${Lazy} from="./selection.js" view="Selection" app=${app} state=${state} />`
      : html`<${Foot} app=${app} isReady=${state.props !== null} hasChats=${chats.length > 0} isBusy=${Object.keys(running).length > 0} />`}
  </nav>`;
}

/** Chats of an age, or in a folder that can be closed. */
function Group({ name, isFolder, children }) {
  if (!isFolder) return html`<li>${name && html`<h2>${name}</h2>`}<ul>${children}</ul></li>`;
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

function Foot({ app, isReady, hasChats, isBusy }) {
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
    <a class="text-button" href="monitor"><${Icon} name="chart" /><span class="label">${t("sidebar.monitor")}</span>
      ${isReady && html`<${Lazy} from="./live_figure.js" view="LiveFigure" isBusy=${isBusy} />`}
    </a>
  </div>`;
}

function Entry({ entry, isShown, isRunning, state: { found, selected, renaming }, app, onPick }) {
  const { id, title } = entry;
  if (renaming === id) return html`<li><${Lazy} from="./title_field.js" view="TitleField" entry=${entry} app=${app} /></li>`;
  if (selected) return html`<li class="entry"><${Lazy} from="./selection.js" view="Choice" entry=${entry} selected=${selected} app=${app} /></li>`;
  const openMenu = ({ currentTarget }) => app.openPanel("chat_menu", { id, at: currentTarget.getBoundingClientRect() });
  return html`<li class="entry">
    <a href="#/chat/${id}" aria-current=${isShown ? "page" : undefined} onClick=${onPick} title=${title} dir="auto">
      ${isRunning && html`<span class="writing" role="img" aria-label=${t("sidebar.running")}></span>`}
      ${found ? html`<${Lazy} from="./found.js" view="Found" entry=${entry} query=${found} />` : title || t("sidebar.newChat")}
    </a>
    <span class="entry-tools"><${IconButton} icon="more" label=${t("sidebar.more")} aria-haspopup="dialog" onClick=${openMenu} /></span>
  </li>`;
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
  return sorted.map((group) => ({ ...group, ...cut(group.members, nShown) }));
}

function cut(members, nShown) {
  return { members: members.slice(0, nShown), isCut: members.length > nShown };
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
