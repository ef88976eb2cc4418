// The ledger: what keys used on each day, as `GET /v1/usage` has it. Asked for when it is opened.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { count, ms } from "./format.js";

const WORDS = {
  title: "Usage by day",
  about: "Days begin at midnight, UTC. Cached tokens were not evaluated again.",
  none: "Nothing was used in the last 30 days.",
  limits: "Your limits:",
  anonymous: "–",
  total: "Total",
};
const COLUMNS = ["Day", "Key", "Requests", "Refused", "Prompt tokens", "Cached tokens", "Cached", "Answer tokens", "In slots"];
const LIMITS = { tokens_per_minute: "tokens per minute", tokens_per_day: "tokens per day", concurrent: "requests at a time" };
const SUMS = ["requests", "refused", "input_tokens", "cached_tokens", "output_tokens", "seconds"];

export function Usage() {
  const [isOpen, setOpen] = useState(false);
  return html`<section class="usage">
    <details onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary><h2>${WORDS.title}</h2></summary>
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
  if (!usage.data.length) return html`<p class="soft">${WORDS.none}</p>`;
  return html`<p class="soft">${WORDS.about} ${limitsText(usage.limits)}</p>
    <div class="scroll" tabindex="0" role="region" aria-label=${WORDS.title}>
      <table>
        <thead><tr>${COLUMNS.map((name, i) => html`<th scope="col" class=${i < 2 ? "text" : ""}>${name}</th>`)}</tr></thead>
        <tbody>${usage.data.map((row) => html`<${Row} row=${row} />`)}</tbody>
        ${usage.data.length > 1 && html`<tfoot><${Row} row=${{ ...sum(usage.data), date: WORDS.total, key: " " }} /></tfoot>`}
      </table>
    </div>`;
}

function Row({ row }) {
  const share = row.input_tokens ? `${Math.round((100 * row.cached_tokens) / row.input_tokens)} %` : "–";
  return html`<tr>
    <th scope="row" class="text">${row.date}</th>
    <td class="text">${row.key || WORDS.anonymous}</td>
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
  const named = Object.entries(limits).map(([name, n]) => `${count(n)} ${LIMITS[name] ?? name}`);
  return named.length ? `${WORDS.limits} ${named.join(", ")}.` : "";
}
