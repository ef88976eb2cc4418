// The last 24 hours: plots by minute, and a table of models and keys. Asks again once a minute.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { count, ms, tick, tickMs } from "./format.js";
import { Plots, clockAxis, quantiles } from "./plots.js";

const WORDS = {
  title: "Last 24 hours",
  none: "Nothing has happened in the last 24 hours.",
  kept: "They survive a restart of the server.",
  notKept: "They are lost when the server stops: it has no --monitor-history.",
  model: "Model",
  key: "Key",
  allKeys: "All keys",
  allModels: "All models",
  keys: "Models and keys",
  ownKey: "This is your own key. Administrators see all keys.",
  anonymous: "–",
  p: (value) => `${ms(value?.p50)} / ${ms(value?.p95)}`,
};
const COLUMNS = ["Model", "Key", "Requests", "Failed", "Prompt tokens", "Cached", "Answer tokens", "In slots", "First token p50 / p95", "Between p50 / p95"];
const LOOK_MS = 60_000;
const DAY_S = 24 * 3600;
const MINUTE_MS = 60_000;
const PLOTS = [
  {
    title: "Tokens per minute",
    format: count,
    tick,
    lines: [
      { label: "generated", color: "--decode", of: (minute) => minute.n_generated },
      { label: "prompts", color: "--prefill", of: (minute) => minute.n_prompt, isRight: true },
    ],
  },
  {
    title: "Requests per minute",
    format: count,
    tick,
    lines: [
      { label: "requests", color: "--decode", of: (minute) => minute.n_requests },
      { label: "failed", color: "--bad", of: (minute) => minute.n_failed, dash: [4, 3] },
    ],
  },
  { title: "Time to first token", format: ms, tick: tickMs, lines: quantiles("ttft_ms") },
  { title: "Time between tokens", format: ms, tick: tickMs, lines: quantiles("itl_ms") },
].map((plot) => ({ ...plot, spanS: DAY_S, hasPoints: true, axis: clockAxis, none: WORDS.none, when: "in the last 24 hours" }));

export function Day() {
  const [day, setDay] = useState(null);
  const [model, setModel] = useState("");
  useEffect(() => {
    const query = model ? `?model=${encodeURIComponent(model)}` : "";
    const look = () => ask(`/monitor/day${query}`).then(setDay, () => {}); // the page says that the server is away
    look();
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [model]);
  if (!day) return null;
  return html`<section class="day" aria-labelledby="day-title">
      <div class="title">
        <h2 id="day-title">${WORDS.title}</h2>
        ${day.models.length > 1 && html`<${Choice} name=${WORDS.model} value=${day.model} all=${day.models} onChange=${setModel} />`}
        <span class="soft">${day.is_kept ? WORDS.kept : WORDS.notKept}</span>
      </div>
      ${day.minutes.length ? html`<${Plots} plots=${PLOTS} samples=${filled(day)} />` : html`<p class="soft">${WORDS.none}</p>`}
    </section>
    ${day.keys.length > 0 && html`<${Keys} day=${day} />`}`;
}

/** Adds the minutes in which nothing happened, next to those in which something did, and now. */
function filled({ minutes, now }) {
  const known = new Set(minutes.map(({ t }) => t));
  const neighbours = minutes.flatMap(({ t }) => [t - MINUTE_MS, t + MINUTE_MS]);
  const missing = [...new Set([...neighbours, now])].filter((t) => t <= now && !known.has(t));
  const idle = missing.map((t) => ({ t, n_requests: 0, n_failed: 0, n_prompt: 0, n_generated: 0, ttft_ms: null, itl_ms: null }));
  return [...minutes, ...idle].sort((a, b) => a.t - b.t);
}

function Keys({ day }) {
  const [key, setKey] = useState("");
  const [model, setModel] = useState("");
  const keys = [...new Set(day.keys.map((row) => row.key))];
  const models = [...new Set(day.keys.map((row) => row.model))];
  const rows = day.keys.filter((row) => (!key || row.key === key) && (!model || row.model === model));
  return html`<section class="keys" aria-labelledby="keys-title">
    <div class="title">
      <h2 id="keys-title">${WORDS.keys}</h2>
      ${models.length > 1 && html`<${Choice} name=${WORDS.model} value=${model} none=${WORDS.allModels} all=${models} onChange=${setModel} />`}
      ${keys.length > 1 && html`<${Choice} name=${WORDS.key} value=${key} none=${WORDS.allKeys} all=${keys} onChange=${setKey} />`}
      ${!day.is_admin && keys.some(Boolean) && html`<span class="soft">${WORDS.ownKey}</span>`}
    </div>
    <div class="scroll" tabindex="0" role="region" aria-labelledby="keys-title">
      <table>
        <thead><tr>${COLUMNS.map((name, i) => html`<th scope="col" class=${i < 2 ? "text" : ""}>${name}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<${KeyRow} key=${`${row.model}\n${row.key}`} row=${row} />`)}</tbody>
      </table>
    </div>
  </section>`;
}

function KeyRow({ row }) {
  return html`<tr>
    <th scope="row" class="text">${row.model}</th>
    <td class="text">${row.key || WORDS.anonymous}</td>
    <td>${count(row.n_requests)}</td>
    <td class=${row.n_failed ? "warn" : ""}>${count(row.n_failed)}</td>
    <td>${count(row.n_prompt)}</td>
    <td>${row.n_prompt ? `${Math.round((100 * row.n_cached) / row.n_prompt)} %` : "–"}</td>
    <td>${count(row.n_generated)}</td>
    <td>${ms(1000 * row.seconds)}</td>
    <td>${WORDS.p(row.ttft_ms)}</td>
    <td>${WORDS.p(row.itl_ms)}</td>
  </tr>`;
}

/** A choice among names; `none`: the name of the choice of all. */
function Choice({ name, value, all, none, onChange }) {
  return html`<span class="choice">
    <span class="soft" aria-hidden="true">${name}</span>
    <select aria-label=${name} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${none && html`<option value="">${none}</option>`}
      ${all.map((each) => html`<option key=${each} value=${each}>${each || WORDS.anonymous}</option>`)}
    </select>
  </span>`;
}
