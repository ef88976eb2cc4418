// The ledger: what keys used on each day, as `GET /v1/usage` has it. Asked for when it is opened.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { count, ms } from "./format.js";
import { listed, percent, t } from "./text.js";

const ANONYMOUS = "–";
const COLUMNS = ["day", "key", "requests", "refused", "promptTokens", "cachedTokens", "cached", "answerTokens", "inSlots"];
const SUMS = ["requests", "refused", "input_tokens", "cached_tokens", "output_tokens", "seconds"];

export function Usage() {
  const [isOpen, setOpen] = useState(false);
  return html`<section class="usage">
    <details onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary><h2>${t("usage.title")}</h2></summary>
      ${isOpen && html`<${Ledger} />`}
    </details>
  </section>`;
}

function Ledger() {
  const [usage, setUsage] = useState(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    ask("/v1/usage").then(setUsage, (error) => setTrouble(error.message));
  }, []);
  if (!usage) return trouble && html`<p class="error">${trouble}</p>`;
  if (!usage.data.length) return html`<p class="soft">${t("usage.none")}</p>`;
  return html`<p class="soft">${t("usage.about")} ${limitsText(usage.limits)}</p>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("usage.title")}>
      <table>
        <thead><tr>${COLUMNS.map((name, i) => html`<th scope="col" class=${i < 2 ? "text" : ""}>${t(`column.${name}`)}</th>`)}</tr></thead>
        <tbody>${usage.data.map((row) => html`<${Row} row=${row} />`)}</tbody>
        ${usage.data.length > 1 && html`<tfoot><${Row} row=${{ ...sum(usage.data), date: t("usage.total"), key: " " }} /></tfoot>`}
      </table>
    </div>`;
}

function Row({ row }) {
  const share = row.input_tokens ? percent(row.cached_tokens / row.input_tokens) : "–";
  return html`<tr>
    <th scope="row" class="text">${row.date}</th>
    <td class="text">${row.key || ANONYMOUS}</td>
    <td>${count(row.requests)}</td>
    <td class=${row.refused ? "warn" : ""}>${count(row.refused)}</td>
    <td>${count(row.input_tokens)}</td>
    <td>${count(row.cached_tokens)}</td>
    <td>${share}</td>
    <td>${count(row.output_tokens)}</td>
    <td>${ms(1000 * row.seconds)}</td>
  </tr>`;
}

function sum(rows) {
  return Object.fromEntries(SUMS.map((name) => [name, rows.reduce((total, row) => total + row[name], 0)]));
}

function limitsText(limits) {
  const named = Object.entries(limits).map(([name, n]) => t(`limit.${name}`, { n }));
  return named.length ? t("usage.limits", { limits: listed(named) }) : "";
}
