// Panels about the server: sources of prompt tokens, the engine, sessions, adapters.

import { html } from "../html.js";
import { about, bytes, clock, count } from "./format.js";

const SOURCES = {
  none: "evaluated",
  own: "reused in the same slot",
  slot: "shared by another slot",
  ram: "from a saved state in memory",
  disk: "from a saved state on disk",
};

export function Prefixes({ cache }) {
  const total = Object.values(cache).reduce((sum, n) => sum + n, 0);
  return html`<section class="prefixes" aria-labelledby="prefixes-title">
    <h2 id="prefixes-title">Prompt tokens of the last minute</h2>
    ${total === 0 && html`<p class="soft">Evaluated and cached prompt tokens appear here.</p>`}
    ${total > 0 &&
    html`<div class="share" aria-hidden="true">
        ${Object.keys(SOURCES).map((name) => html`<i class=${`from-${name}`} style=${{ width: `${(100 * cache[name]) / total}%` }}></i>`)}
      </div>
      <ul class="sources">
        ${Object.entries(SOURCES).map(
          ([name, text]) => html`<li class=${`from-${name}`}>
            <span>${text}</span>
            <strong>${count(cache[name])}</strong>
            <span class="soft">${Math.round((100 * cache[name]) / total)} %</span>
          </li>`,
        )}
      </ul>`}
  </section>`;
}

export function Engine({ engine, kv }) {
  return html`<section aria-labelledby="engine-title">
    <h2 id="engine-title">Engine</h2>
    <dl class="facts">
      <dt>Model</dt>
      <dd class="model">${engine.model}</dd>
      <dt>Slots</dt>
      <dd>${count(engine.n_slots)} with ${count(engine.n_ctx)} tokens each</dd>
      <dt>KV cache</dt>
      <dd>${about(kv.n_tokens)} of ${about(kv.n_room)} tokens</dd>
      <dt>Restarts</dt>
      <dd>${engine.n_restarts ? `${count(engine.n_restarts)}, the last one at ${clock(engine.restarts.at(-1))}` : "none"}</dd>
    </dl>
  </section>`;
}

export function Sessions({ sessions }) {
  return html`<section aria-labelledby="sessions-title">
    <h2 id="sessions-title">Sessions</h2>
    ${sessions.n
      ? html`<p><strong class="large">${count(sessions.n)}</strong> <span class="soft">saved, ${bytes(sessions.n_bytes)} in memory</span></p>`
      : html`<p class="soft">None. Saved sessions are counted here.</p>`}
  </section>`;
}

export function Adapters({ adapters }) {
  return html`<section aria-labelledby="adapters-title">
    <h2 id="adapters-title">Adapters</h2>
    ${adapters.length
      ? html`<dl class="facts">
          ${adapters.map(({ id, name, scale }) => [
            html`<dt key=${`name ${id}`}>${name}</dt>`,
            html`<dd key=${`scale ${id}`}>${scale ? `scale ${scale}` : "off"}</dd>`,
          ])}
        </dl>`
      : html`<p class="soft">None. LoRA adapters are listed here with their scales.</p>`}
  </section>`;
}
