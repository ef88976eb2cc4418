// Panels about the server: sources of prompt tokens, the engine, sessions, adapters.

import { html } from "../html.js";
import { about, bytes, clock, count } from "./format.js";
import { parts, percent, t } from "./text.js";

const SOURCES = ["none", "own", "slot", "ram", "disk"];

export function Prefixes({ cache }) {
  const total = Object.values(cache).reduce((sum, n) => sum + n, 0);
  return html`<section class="prefixes" aria-labelledby="prefixes-title">
    <h2 id="prefixes-title">${t("panel.promptTokens")}</h2>
    ${total === 0 && html`<p class="soft">${t("panel.noPrompts")}</p>`}
    ${total > 0 &&
    html`<div class="share" aria-hidden="true">
        ${SOURCES.map((name) => html`<i class=${`from-${name}`} style=${{ width: `${(100 * cache[name]) / total}%` }}></i>`)}
      </div>
      <ul class="sources">
        ${SOURCES.map(
          (name) => html`<li class=${`from-${name}`}>
            <span>${t(`prefix.${name}`)}</span>
            <strong>${count(cache[name])}</strong>
            <span class="soft">${percent(cache[name] / total)}</span>
          </li>`,
        )}
      </ul>`}
  </section>`;
}

export function Engine({ engine, kv }) {
  return html`<section aria-labelledby="engine-title">
    <h2 id="engine-title">${t("panel.engine")}</h2>
    <dl class="facts">
      <dt>${t("column.model")}</dt>
      <dd class="model">${engine.model}</dd>
      <dt>${t("lane.slots")}</dt>
      <dd>${t("panel.slotsOf", { n: engine.n_slots, nCtx: engine.n_ctx })}</dd>
      <dt>${t("tile.kv")}</dt>
      <dd>${t("lane.held", { n: about(kv.n_tokens), room: about(kv.n_room) })}</dd>
      <dt>${t("tile.restarts")}</dt>
      <dd>${engine.n_restarts ? t("panel.restartsLast", { n: engine.n_restarts, time: clock(engine.restarts.at(-1)) }) : count(0)}</dd>
    </dl>
  </section>`;
}

export function Sessions({ sessions }) {
  return html`<section aria-labelledby="sessions-title">
    <h2 id="sessions-title">${t("panel.sessions")}</h2>
    ${sessions.n
      ? html`<p class="soft">
          ${parts("panel.saved", { n: html`<strong class="large">${count(sessions.n)}</strong>`, size: bytes(sessions.n_bytes) })}
        </p>`
      : html`<p class="soft">${t("panel.noSessions")}</p>`}
  </section>`;
}

export function Adapters({ adapters }) {
  return html`<section aria-labelledby="adapters-title">
    <h2 id="adapters-title">${t("panel.adapters")}</h2>
    ${adapters.length
      ? html`<dl class="facts">
          ${adapters.map(({ id, name, scale }) => [
            html`<dt key=${`name ${id}`}>${name}</dt>`,
            html`<dd key=${`scale ${id}`}>${scale ? t("panel.scale", { scale: String(scale) }) : t("panel.off")}</dd>`,
          ])}
        </dl>`
      : html`<p class="soft">${t("panel.noAdapters")}</p>`}
  </section>`;
}
