// The whole page: state, numbers, lanes, plots and finished requests.

import { html, useEffect, useState } from "../html.js";
import { nextTheme } from "../theme.js";
import { IconButton } from "../view/icon.js";
import { KeyDialog } from "../view/key_dialog.js";
import { clock } from "./format.js";
import { Hardware } from "./hardware.js";
import { Lanes } from "./lanes.js";
import { Adapters, Engine, Prefixes, Sessions } from "./panels.js";
import { Plots } from "./plots.js";
import { Requests } from "./requests.js";
import { t } from "./text.js";
import { Tiles } from "./tiles.js";
import { Usage } from "./usage.js";

export function App({ feed }) {
  const [state, setState] = useState(feed.state);
  useEffect(() => {
    setState(feed.state); // it may have changed since the page was drawn
    return feed.subscribe(setState);
  }, []);
  const { link, snapshot, nTries } = state;
  return html`<${Head} about=${snapshot?.engine.model} />
    <main class=${link === "open" ? "" : "stale"}>
      <${Status} state=${state} />
      ${snapshot && html`<${Dashboard} feed=${feed} state=${state} />`}
    </main>
    ${link === "locked" && html`<${KeyDialog} key=${nTries} onKey=${(key) => feed.useKey(key)} />`}`;
}

export function Head({ about }) {
  return html`<header class="head">
    <a href="./" class="back">← ${t("monitor.chat")}</a>
    <h1>${t("monitor.title")}</h1>
    <span class="soft model">${about}</span>
    <${IconButton} icon="theme" label=${t("sidebar.theme")} onClick=${nextTheme} />
  </header>`;
}

function Status({ state: { link, reason, snapshot } }) {
  const engine = snapshot?.engine.state;
  const [kind, text] =
    link === "open"
      ? [engine, t(`engine.${engine}`, { time: clock(snapshot.engine.since) })]
      : [link, linkText(link, reason, snapshot)];
  return html`<p class="status ${kind}" role="status" data-state=${kind}>
    <span class="dot" aria-hidden="true"></span>${text}
  </p>`;
}

function linkText(link, reason, snapshot) {
  if (link === "connecting") return t("app.connecting");
  if (link === "locked") return t("key.title");
  if (link === "refused") return t("monitor.refused", { reason });
  return snapshot ? t("monitor.stale") : t("monitor.down");
}

function Dashboard({ feed, state }) {
  const { snapshot, prompts, lag } = state;
  return html`<${Tiles} snapshot=${snapshot} />
    <${Hardware} />
    <${Lanes} snapshot=${snapshot} lag=${lag} isLive=${state.link === "open"} prompts=${prompts} onPrompts=${(on) => feed.askForPrompts(on)} />
    <${Plots} samples=${snapshot.samples} />
    <div class="panels">
      <${Prefixes} cache=${snapshot.cache} />
      <${Engine} engine=${snapshot.engine} kv=${snapshot.kv} />
      <${Sessions} sessions=${snapshot.sessions} />
      <${Adapters} adapters=${snapshot.adapters} />
    </div>
    <${Requests} requests=${snapshot.requests} />
    <${Usage} />`;
}
