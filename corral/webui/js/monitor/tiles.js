// The most important numbers.

import { html } from "../html.js";
import { about, count, ms, rate } from "./format.js";

export function Tiles({ snapshot }) {
  const { queue, latency, kv, engine, samples } = snapshot;
  const share = kv.n_room ? Math.round((100 * kv.n_tokens) / kv.n_room) : 0;
  return html`<dl class="tiles" aria-label="Now">
    <${Tile} name="Running" value=${count(queue.n_running)} more=${`of ${engine.n_slots} slots`} />
    <${Tile} name="Waiting" value=${count(queue.n)} more=${queue.n ? "for a slot" : "none"} kind=${queue.n ? "warn" : ""} />
    <${Tile} name="Generated" value=${rate(mean(samples, "generated_per_second"))} more="tokens / s" />
    <${Tile} name="Prompts" value=${rate(mean(samples, "prompt_per_second"))} more="tokens / s" />
    <${Tile} name="First token" value=${ms(latency.ttft_ms?.p50)} more=${`p95 ${ms(latency.ttft_ms?.p95)}`} />
    <${Tile} name="Between tokens" value=${ms(latency.itl_ms?.p50)} more=${`p95 ${ms(latency.itl_ms?.p95)}`} />
    <${Tile} name="KV cache" value=${`${share} %`} more=${`${about(kv.n_tokens)} of ${about(kv.n_room)}`} />
    <${Tile} name="Restarts" value=${count(engine.n_restarts)} more="of the engine" kind=${engine.n_restarts ? "bad" : ""} />
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
