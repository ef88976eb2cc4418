// The whole page: state, numbers, lanes, plots and finished requests.

import { html, useEffect, useState } from "../html.js";
import { nextTheme } from "../theme.js";
import { IconButton } from "../view/icon.js";
import { KeyDialog } from "../view/key_dialog.js";
import { Day } from "./day.js";
import { clock } from "./format.js";
import { Lanes } from "./lanes.js";
import { Adapters, Engine, Prefixes, Sessions } from "./panels.js";
import { Plots } from "./plots.js";
import { Requests } from "./requests.js";
import { Tiles } from "./tiles.js";
import { Usage } from "./usage.js";

const ENGINE = {
  loading: "The model is loading.",
  restarting: "The engine is restarting; running requests resume afterwards.",
  sleeping: "The engine is unloaded until the next request.",
  waking: "The engine is loading again.",
  failed: "The engine has failed: see the server's log.",
};

export function App({ feed }) {
  const [state, setState] = useState(feed.state);
  useEffect(() => feed.subscribe(setState), []);
  const { link, snapshot, nTries } = state;
  return html`<header class="head">
      <a href="./" class="back">← Chat</a>
      <h1>Monitor</h1>
      <span class="soft model">${snapshot?.engine.model}</span>
      <${IconButton} icon="theme" label="Light, dark or system theme" onClick=${nextTheme} />
    </header>
    <main class=${link === "open" ? "" : "stale"}>
      <${Status} state=${state} />
      ${snapshot && html`<${Dashboard} feed=${feed} state=${state} />`}
    </main>
    ${link === "locked" && html`<${KeyDialog} key=${nTries} onKey=${(key) => feed.useKey(key)} />`}`;
}

function Status({ state: { link, reason, snapshot } }) {
  const engine = snapshot?.engine.state;
  const [kind, text] =
    link === "open"
      ? [engine, ENGINE[engine] ?? `Ready since ${clock(snapshot.engine.since)}`]
      : [link, linkText(link, reason, snapshot)];
  return html`<p class="status ${kind}" role="status" data-state=${kind}>
    <span class="dot" aria-hidden="true"></span>${text}
  </p>`;
}

function linkText(link, reason, snapshot) {
  if (link === "connecting") return "Connecting to the server…";
  if (link === "locked") return "The server requires an API key.";
  if (link === "refused") return `The server says: ${reason}`;
  return snapshot
    ? "The server cannot be reached. This is its last known state; the page reconnects by itself."
    : "The server cannot be reached. The page reconnects by itself.";
}

function Dashboard({ feed, state }) {
  const { snapshot, prompts, lag } = state;
  return html`<${Tiles} snapshot=${snapshot} />
    <${Lanes} snapshot=${snapshot} lag=${lag} isLive=${state.link === "open"} prompts=${prompts} onPrompts=${(on) => feed.askForPrompts(on)} />
    <${Plots} samples=${snapshot.samples} />
    <div class="panels">
      <${Prefixes} cache=${snapshot.cache} />
      <${Engine} engine=${snapshot.engine} kv=${snapshot.kv} />
      <${Sessions} sessions=${snapshot.sessions} />
      <${Adapters} adapters=${snapshot.adapters} />
    </div>
    <${Requests} requests=${snapshot.requests} />
    <${Day} />
    <${Usage} />`;
}
