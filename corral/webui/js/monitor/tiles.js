// The most important numbers.

import { html } from "../html.js";
import { about, count, ms, rate } from "./format.js";
import { percent, t } from "./text.js";

export function Tiles({ snapshot }) {
  const { queue, latency, kv, engine, samples } = snapshot;
  const share = kv.n_room ? kv.n_tokens / kv.n_room : 0;
  return html`<dl class="tiles" aria-label=${t("tile.now")}>
    <${Tile} name=${t("tile.running")} value=${count(queue.n_running)} more=${t("tile.ofSlots", { n: engine.n_slots })} />
    <${Tile} name=${t("tile.waiting")} value=${count(queue.n)} more=${queue.n ? t("tile.forSlot") : t("tile.none")} kind=${queue.n ? "warn" : ""} />
    <${Tile} name=${t("tile.generated")} value=${rate(mean(samples, "generated_per_second"))} more=${t("tile.perSecond")} />
    <${Tile} name=${t("tile.prompts")} value=${rate(mean(samples, "prompt_per_second"))} more=${t("tile.perSecond")} />
    <${Tile} name=${t("tile.firstToken")} value=${ms(latency.ttft_ms?.p50)} more=${t("tile.p95", { time: ms(latency.ttft_ms?.p95) })} />
    <${Tile} name=${t("tile.between")} value=${ms(latency.itl_ms?.p50)} more=${t("tile.p95", { time: ms(latency.itl_ms?.p95) })} />
    <${Tile} name=${t("tile.kv")} value=${percent(share)} more=${t("tile.of", { n: about(kv.n_tokens), room: about(kv.n_room) })} />
    <${Tile} name=${t("tile.restarts")} value=${count(engine.n_restarts)} more=${t("tile.ofEngine")} kind=${engine.n_restarts ? "bad" : ""} />
  </dl>`;
}

function Tile({ name, value, more, kind = "" }) {
  return html`<div class="tile ${kind}">
    <dt>${name}</dt>
    <dd><strong>${value}</strong> <span class="soft">${more}</span></dd>
  </div>`;
}

/** Averages the last two seconds, since single samples are noisy. */
function mean(samples, name) {
  const last = samples.slice(-4);
  return last.length ? last.reduce((sum, sample) => sum + sample[name], 0) / last.length : 0;
}
