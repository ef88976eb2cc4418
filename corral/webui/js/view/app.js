// The whole page: chats on the left, the conversation in the middle, settings on the right.

import { html, useEffect, useState } from "../html.js";
import { encodingOf, modelName } from "../identity.js";
import { nChanges } from "../settings.js";
import { titleOf } from "../tree.js";
import { Composer } from "./composer.js";
import { useFocusBack } from "./focus.js";
import { IconButton } from "./icon.js";
import { Lazy, load } from "./lazy.js";
import { Panel } from "./panel.js";
import { Shortcuts, onShortcut } from "./shortcuts.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";
import { t } from "../text.js";

const SERVER = { connecting: t("app.connecting"), loading: t("app.loading"), down: t("app.down") };

export function App({ app }) {
  const [state, setState] = useState(app.state);
  const [open, setOpen] = useState(""); // list, settings or keys, one at a time on small screens
  useEffect(() => {
    setState(app.state); // it may have changed since the page was drawn
    return app.subscribe(setState);
  }, []);
  useEffect(() => {
    document.title = `${titleOf(state.chat)} · Corral`;
  }, [state.chat]);
  useEffect(() => {
    const listener = (event) => onShortcut(event, app, setOpen);
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
  const [choice, setChoice] = useState(null);
  useEffect(() => {
    if (app.many) load("./model_choice.js").then(setChoice, () => {}); // then the name of the model is shown
  }, [state.models]);
  useEffect(() => {
    const isWanted = localStorage.getItem("corral.titles") === "on" || state.props?.ui_settings?.titles;
    if (isWanted) load("../titles.js").then(({ watchIdle }) => watchIdle(app), () => {});
  }, [state.props]);
  useFocusBack(open);
  useEffect(() => {
    if (Object.values(state.fieldErrors).some(Boolean)) setOpen("settings");
  }, [state.fieldErrors]);
  const { server, reason, chat, props, notice } = state;
  const nChanged = nChanges(chat);
  const close = () => setOpen("");
  return html`<div class="app">
    <a class="skip" href="#composer">${t("app.skip")}</a>
    <${Sidebar} app=${app} state=${state} isOpen=${open === "list"} onClose=${() => open === "list" && close()} />
    <main>
      <header class="head">
        <${IconButton} icon="menu" label=${t("app.chats")} class="plain icon-button phone-only" onClick=${() => setOpen("list")} />
        <h1 dir="auto">${titleOf(chat)}</h1>
        ${choice
          ? html`<${choice.ModelChoice} app=${app} state=${state} />`
          : html`<span class="model" dir="auto" title=${props?.model_path ?? ""}>
              ${[modelName(state), encodingOf(props)].filter(Boolean).join(" · ")}
            </span>`}
        <${IconButton}
          icon="sliders"
          label=${nChanged ? t("app.settingsChanged", { n: nChanged }) : t("app.settings")}
          badge=${nChanged || ""}
          pressed=${open === "settings"}
          onClick=${() => setOpen(open === "settings" ? "" : "settings")}
        />
      </header>
      ${SERVER[server] && html`<p class="banner ${server}" role="status">
        ${server === "down" && !props ? t("app.offline") : SERVER[server]} ${server === "loading" && `(${reason})`}
      </p>`}
      ${notice &&
      html`<p class="banner ${notice.kind} ${notice.kind === "info" ? "news" : ""}" role="status">
        ${notice.text} <span class="space"></span>
        ${notice.undo && html`<button type="button" onClick=${() => (app.tell(""), notice.undo())}>${t("app.undo")}</button>`}
        <${IconButton} icon="close" label=${t("app.dismiss")} onClick=${() => app.tell("")} />
      </p>`}
      <${Thread} app=${app} state=${state} onOpen=${setOpen} />
      <${Composer} app=${app} state=${state} />
    </main>
    ${open === "settings" && html`<${Lazy} from="./settings_panel.js" view="SettingsPanel" app=${app} state=${state} onClose=${close} />`}
    ${open === "keys" && html`<${Shortcuts} onClose=${() => setOpen((now) => (now === "keys" ? "" : now))} />`}
    <${Panel} app=${app} state=${state} onOpen=${setOpen} />
    ${server === "locked" && html`<${Lazy} from="./key_dialog.js" view="KeyDialog" onKey=${(key) => app.useKey(key)} />`}
  </div>`;
}
