// The monitor of a server for many models: their memory, as planned and as it is, and a group of lanes for each.

import { html, useEffect, useState } from "../html.js";
import { ask, setApiKey } from "../api.js";
import { KeyDialog } from "../view/key_dialog.js";
import { Head } from "./app.js";
import { Feed } from "./feed.js";
import { bytes } from "./format.js";
import { Hardware } from "./hardware.js";
import { Lanes } from "./lanes.js";
import { Requests } from "./requests.js";
import { parts, t } from "./text.js";
import { Usage } from "./usage.js";

const LOOK_MS = 1000;
const MAX_GROUPS = 4; // browsers open few connections to a server
const HUES = 67; // degrees between the colours of two models

export function ManyApp() {
  const [list, setList] = useState(null);
  const [trouble, setTrouble] = useState(t("app.connecting")); // empty: none
  const [isLocked, setLocked] = useState(false);
  const [nTries, setTries] = useState(0);
  useEffect(() => {
    const look = () =>
      ask("/v1/models").then(
        (found) => (setList(found), setTrouble(""), setLocked(false)),
        (error) => (setTrouble(error.wantsKey ? t("key.title") : error.message), setLocked(error.wantsKey)),
      );
    look();
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [nTries]);
  const models = list?.data ?? [];
  const held = models.filter(({ memory }) => memory?.is_held);
  const shown = held.filter(({ status }) => status.value === "loaded").slice(0, MAX_GROUPS);
  const useKey = (key) => (setApiKey(key), setTries(nTries + 1));
  return html`<${Head} about=${t("monitor.models", { n: models.length, held: held.length })} />
    <main class=${trouble ? "stale" : ""}>
      ${trouble && html`<p class="status" role="status">${trouble}</p>`}
      ${list && html`<${Hardware} key=${`hardware ${nTries}`} />`}
      ${list && html`<${Memory} models=${models} held=${held} limit=${list.memory?.limit} />`}
      ${shown.map(({ id }) => html`<${Group} key=${`${id} ${nTries}`} model=${id} />`)}
      ${list && !shown.length && html`<p class="soft">${t("memory.none")}</p>`}
      ${list && html`<${Usage} key=${`usage ${nTries}`} />`}
    </main>
    ${isLocked && html`<${KeyDialog} key=${nTries} onKey=${useKey} />`}`;
}

/** Memory as two bars of the same length: what was planned for each model, and what its engine uses. */
function Memory({ models, held, limit }) {
  const most = Math.max(limit ?? 0, total(held, "needed"), total(held, "used"), 1);
  const bar = (field) => html`<div class="share memory" aria-hidden="true">
    ${held.map(({ id, memory }) => {
      const style = { width: `${(100 * (memory[field] ?? 0)) / most}%`, background: colour(models, id) };
      return html`<i key=${id} style=${style} title=${`${id}: ${bytes(memory[field] ?? 0)}`}></i>`;
    })}
  </div>`;
  const size = (field) => html`<strong data-memory=${field}>${bytes(total(held, field))}</strong>`;
  const row = (text) => html`<p>
    ${text}${" "}<span class="soft">${limit ? t("memory.of", { size: bytes(limit) }) : ""}</span>
  </p>`;
  return html`<section aria-labelledby="memory-title">
    <h2 id="memory-title">${t("memory.title")}</h2>
    ${row(parts("memory.planned", { size: size("needed") }))} ${bar("needed")} ${row(parts("memory.used", { size: size("used") }))} ${bar("used")}
    <dl class="facts">
      ${held.map(({ id, memory }) => [
        html`<dt key=${`name ${id}`}><span style=${{ color: colour(models, id) }}>■</span> ${id}</dt>`,
        html`<dd key=${`memory ${id}`}>${t("memory.ofPlanned", { used: bytes(memory.used), planned: bytes(memory.needed ?? 0) })}</dd>`,
      ])}
    </dl>
  </section>`;
}

function Group({ model }) {
  const [feed] = useState(() => new Feed(model));
  const [state, setState] = useState(feed.state);
  useEffect(() => {
    const leave = feed.subscribe(setState);
    feed.connect();
    return () => (leave(), feed.close());
  }, []);
  if (!state.snapshot) return null;
  return html`<${Lanes}
      title=${model}
      snapshot=${state.snapshot}
      lag=${state.lag}
      isLive=${state.link === "open"}
      prompts=${state.prompts}
      onPrompts=${(on) => feed.askForPrompts(on)}
    />
    ${state.snapshot.requests.length > 0 && html`<${Requests} requests=${state.snapshot.requests} model=${model} />`}`;
}

function total(held, field) {
  return held.reduce((sum, { memory }) => sum + (memory[field] ?? 0), 0);
}

function colour(models, id) {
  return `hsl(${models.findIndex((each) => each.id === id) * HUES} 60% 50%)`;
}
