// Finished requests, newest first.

import { html } from "../html.js";
import { clock, count, ms, rate, shortId, source } from "./format.js";

const COLUMNS = ["Ended", "Request", "Key", "Status", "Queue", "First token", "Prompt", "Cached", "From", "Answer", "Tokens / s", "Between", "Longest"];
const TEXTS = new Set(["Ended", "Request", "Key", "Status", "From"]);

export function Requests({ requests }) {
  return html`<section class="requests" aria-labelledby="requests-title">
    <h2 id="requests-title">Last requests</h2>
    ${!requests.length && html`<p class="soft">Finished requests appear here with their timings and cached tokens.</p>`}
    ${requests.length > 0 &&
    html`<div class="scroll" tabindex="0" role="region" aria-labelledby="requests-title">
      <table>
        <thead>
          <tr>${COLUMNS.map((name) => html`<th scope="col" class=${TEXTS.has(name) ? "text" : ""}>${name}</th>`)}</tr>
        </thead>
        <tbody>${requests.toReversed().map((request) => html`<${Row} key=${request.n} request=${request} />`)}</tbody>
      </table>
    </div>`}
  </section>`;
}

function Row({ request }) {
  const { t, id, path, key, status, n_orders, n_engines, report } = request;
  const isBad = status >= 400;
  const why = report ? `${count(report.n_common)} tokens in common with the nearest cached prompt, ${count(report.n_moved)} moved` : undefined;
  return html`<tr class=${isBad ? "bad" : ""}>
    <td class="text soft">${clock(t)}</td>
    <th scope="row" class="text" title=${id}>
      ${path} <span class="soft">${shortId(id)}${n_orders > 1 ? ` ×${n_orders}` : ""}</span>
      ${n_engines > 1 && html` <span class="warn resumed" title="Resumed after an engine restart">resumed</span>`}
    </th>
    <td class="text">${key || "–"}</td>
    <td class="text status-code">${status}</td>
    <td>${ms(request.queue_ms)}</td>
    <td>${ms(request.ttft_ms)}</td>
    <td>${count(request.n_prompt)}</td>
    <td class=${request.n_cached ? "cached" : ""} title=${why}>${count(request.n_cached)}</td>
    <td class="text soft">${request.n_cached ? source(request) : "–"}</td>
    <td>${count(request.n_generated)}</td>
    <td>${rate(request.generated_per_second)}</td>
    <td>${ms(request.itl_ms)}</td>
    <td>${ms(request.itl_max_ms)}</td>
  </tr>`;
}
