// Finished requests, newest first.

import { html, useState } from "../html.js";
import { Detail } from "./detail.js";
import { clock, count, ms, rate, shortId, source } from "./format.js";
import { t } from "./text.js";

const COLUMNS = ["ended", "request", "key", "status", "queue", "first", "prompt", "cached", "from", "answer", "perSecond", "gap", "longest"];
const TEXTS = new Set(["ended", "request", "key", "status", "from"]);

/** `model`: one of many, empty: the only one. */
export function Requests({ requests, model = "" }) {
  const [shown, setShown] = useState(0);
  const title = `requests-title${model && `-${model}`}`;
  return html`<section class="requests" aria-labelledby=${title}>
    <h2 id=${title}>${t("request.title")}${model && html` <span class="soft">${model}</span>`}</h2>
    ${!requests.length && html`<p class="soft">${t("request.none")}</p>`}
    ${requests.length > 0 &&
    html`<div class="scroll" tabindex="0" role="group" aria-labelledby=${title}>
      <table>
        <thead>
          <tr>${COLUMNS.map((name) => html`<th scope="col" class=${TEXTS.has(name) ? "text" : ""}>${t(`column.${name}`)}</th>`)}</tr>
        </thead>
        <tbody>${requests.toReversed().map((request) => html`<${Row} key=${request.n} request=${request} onOpen=${setShown} />`)}</tbody>
      </table>
    </div>`}
    ${shown > 0 && html`<${Detail} key=${shown} n=${shown} model=${model} onClose=${() => setShown(0)} />`}
  </section>`;
}

function Row({ request, onOpen }) {
  const { n, id, path, key, status, n_orders, n_engines, report } = request;
  const isBad = status >= 400;
  const why = report ? t("request.common", { n: report.n_common, moved: report.n_moved }) : undefined;
  return html`<tr class=${isBad ? "bad" : ""}>
    <td class="text soft">${clock(request.t)}</td>
    <th scope="row" class="text" title=${id}>
      <button type="button" class="open-request" title=${t("request.open")} onClick=${() => onOpen(n)}>
        ${path || t("request.title")} <span class="soft">${shortId(id)}${n_orders > 1 ? ` ×${n_orders}` : ""}</span>
      </button>
      ${n_engines > 1 && html` <span class="warn resumed" title=${t("request.resumedBecause")}>${t("request.resumed")}</span>`}
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
