// The last 24 hours: plots by minute, and a table of models and keys. Asks again once a minute.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { count, ms, tick, tickMs } from "./format.js";
import { Plots, clockAxis, quantiles } from "./plots.js";
import { percent, t } from "./text.js";

const ANONYMOUS = "–";
const COLUMNS = ["model", "key", "requests", "failed", "promptTokens", "cached", "answerTokens", "inSlots", "firstRange", "gapRange"];
const LOOK_MS = 60_000;
const DAY_S = 24 * 3600;
const MINUTE_MS = 60_000;
const PLOTS = [
  {
    title: t("plot.perMinute"),
    format: count,
    tick,
    lines: [
      { label: t("plot.generated"), color: "--decode", of: (minute) => minute.n_generated },
      { label: t("plot.prompts"), color: "--prefill", of: (minute) => minute.n_prompt, isRight: true },
    ],
  },
  {
    title: t("plot.requestsPerMinute"),
    format: count,
    tick,
    lines: [
      { label: t("plot.requests"), color: "--decode", of: (minute) => minute.n_requests },
      { label: t("plot.failed"), color: "--bad", of: (minute) => minute.n_failed, dash: [4, 3] },
    ],
  },
  { title: t("plot.ttft"), format: ms, tick: tickMs, lines: quantiles("ttft_ms") },
  { title: t("plot.itl"), format: ms, tick: tickMs, lines: quantiles("itl_ms") },
].map((plot) => ({ ...plot, spanS: DAY_S, hasPoints: true, axis: clockAxis, span: "day" }));

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
        <h2 id="day-title">${t("day.title")}</h2>
        ${day.models.length > 1 && html`<${Choice} name=${t("column.model")} value=${day.model} all=${day.models} onChange=${setModel} />`}
        <span class="soft">${day.is_kept ? t("day.kept") : t("day.notKept")}</span>
      </div>
      ${day.minutes.length ? html`<${Plots} plots=${PLOTS} samples=${filled(day)} />` : html`<p class="soft">${t("span.day.none")}</p>`}
    </section>
    ${day.keys.length > 0 && html`<${Keys} day=${day} />`}`;
}

/** Adds the minutes in which nothing happened, next to those in which something did, and now. */
function filled({ minutes, now }) {
  const known = new Set(minutes.map((minute) => minute.t));
  const neighbours = minutes.flatMap((minute) => [minute.t - MINUTE_MS, minute.t + MINUTE_MS]);
  const missing = [...new Set([...neighbours, now])].filter((at) => at <= now && !known.has(at));
  const idle = missing.map((at) => ({ t: at, n_requests: 0, n_failed: 0, n_prompt: 0, n_generated: 0, ttft_ms: null, itl_ms: null }));
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
      <h2 id="keys-title">${t("day.keys")}</h2>
      ${models.length > 1 && html`<${Choice} name=${t("column.model")} value=${model} none=${t("day.allModels")} all=${models} onChange=${setModel} />`}
      ${keys.length > 1 && html`<${Choice} name=${t("column.key")} value=${key} none=${t("day.allKeys")} all=${keys} onChange=${setKey} />`}
      ${!day.is_admin && keys.some(Boolean) && html`<span class="soft">${t("day.ownKey")}</span>`}
    </div>
    <div class="scroll" tabindex="0" role="region" aria-labelledby="keys-title">
      <table>
        <thead><tr>${COLUMNS.map((name, i) => html`<th scope="col" class=${i < 2 ? "text" : ""}>${t(`column.${name}`)}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<${KeyRow} key=${`${row.model}\n${row.key}`} row=${row} />`)}</tbody>
      </table>
    </div>
  </section>`;
}

function KeyRow({ row }) {
  return html`<tr>
    <th scope="row" class="text">${row.model}</th>
    <td class="text">${row.key || ANONYMOUS}</td>
    <td>${count(row.n_requests)}</td>
    <td class=${row.n_failed ? "warn" : ""}>${count(row.n_failed)}</td>
    <td>${count(row.n_prompt)}</td>
    <td>${row.n_prompt ? percent(row.n_cached / row.n_prompt) : "–"}</td>
    <td>${count(row.n_generated)}</td>
    <td>${ms(1000 * row.seconds)}</td>
    <td>${range(row.ttft_ms)}</td>
    <td>${range(row.itl_ms)}</td>
  </tr>`;
}

function range(value) {
  return `${ms(value?.p50)} / ${ms(value?.p95)}`;
}

/** A choice among names; `none`: the name of the choice of all. */
function Choice({ name, value, all, none, onChange }) {
  return html`<span class="choice">
    <span class="soft" aria-hidden="true">${name}</span>
    <select aria-label=${name} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${none && html`<option value="">${none}</option>`}
      ${all.map((each) => html`<option key=${each} value=${each}>${each || ANONYMOUS}</option>`)}
    </select>
  </span>`;
}
