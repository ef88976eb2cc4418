// The whole page: state, numbers, lanes, plots, and what has ended.

import { html, useEffect, useState } from "../html.js";
import { nextTheme } from "../theme.js";
import { IconButton } from "../view/icon.js";
import { KeyDialog } from "../view/key_dialog.js";
import { clock } from "./format.js";
import { Lanes } from "./lanes.js";
import { Adapters, Engine, Prefixes, Sessions } from "./panels.js";
import { Plots } from "./plots.js";
import { Requests } from "./requests.js";
import { Tiles } from "./tiles.js";

const ENGINE = {
  loading: "The model is loading.",
  restarting: "The engine is restarting; requests go on where they were when it is back.",
  sleeping: "The engine sleeps until a request comes.",
  waking: "The engine is waking up.",
  failed: "The engine is down for good: see the server's log.",
};

export function App({ feed }) {
  const [state, setState] = useState(feed.state);
  useEffect(() => feed.subscribe(setState), []);
  const { link, picture, nTries } = state;
  return html`<header class="head">
      <a href="./" class="back">← Chat</a>
      <h1>Monitor</h1>
      <span class="soft model">${picture?.engine.model}</span>
      <${IconButton} icon="theme" label="Light, dark, or as the system" onClick=${nextTheme} />
    </header>
    <main class=${link === "open" ? "" : "stale"}>
      <${Status} state=${state} />
      ${picture && html`<${Picture} feed=${feed} state=${state} />`}
    </main>
    ${link === "locked" && html`<${KeyDialog} key=${nTries} onKey=${(key) => feed.useKey(key)} />`}`;
}

function Status({ state: { link, reason, picture } }) {
  const engine = picture?.engine.state;
  const [kind, text] =
    link === "open"
      ? [engine, ENGINE[engine] ?? `Ready since ${clock(picture.engine.since)}`]
      : [link, linkText(link, reason, picture)];
  return html`<p class="status ${kind}" role="status" data-state=${kind}>
    <span class="dot" aria-hidden="true"></span>${text}
  </p>`;
}

function linkText(link, reason, picture) {
  if (link === "connecting") return "Connecting to the server…";
  if (link === "locked") return "The server wants a key.";
  if (link === "refused") return `The server says: ${reason}`;
  return picture
    ? "The server cannot be reached. What is shown is the last that came; this page goes on by itself when it is back."
    : "The server cannot be reached. This page goes on by itself when it is there.";
}

function Picture({ feed, state }) {
  const { picture, prompts, lag } = state;
  return html`<${Tiles} picture=${picture} />
    <${Lanes} picture=${picture} lag=${lag} isLive=${state.link === "open"} prompts=${prompts} onPrompts=${(on) => feed.askForPrompts(on)} />
    <${Plots} samples=${picture.samples} />
    <div class="panels">
      <${Prefixes} cache=${picture.cache} />
      <${Engine} engine=${picture.engine} kv=${picture.kv} />
      <${Sessions} sessions=${picture.sessions} />
      <${Adapters} adapters=${picture.adapters} />
    </div>
    <${Requests} requests=${picture.requests} />`;
}
