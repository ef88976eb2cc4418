// The speed of an answer, the cached part of its prompt, and the use of the context.

import { html } from "../html.js";
import { IconButton } from "./icon.js";
import { number, percent, seconds, t } from "../text.js";

export function Timings({ timings, nCtx, isWriting, onOpen }) {
  const { cache_n: nCached, prompt_n: nPrompt, predicted_n: nPredicted } = timings;
  const nUsed = nCached + nPrompt + nPredicted;
  const isForced = timings.forced_n > nPredicted / 2; // tokens that a grammar forces take no time
  const speed = isForced ? 0 : timings.predicted_per_second;
  const about = { n: nCached + nPrompt, evaluated: nPrompt, time: t("unit.ms", { n: timings.prompt_ms }) };
  return html`<span class="timings" title=${t("timings.prompt", about)}>
    <span>${t("count.tokens", { n: nPredicted })}</span>
    ${speed > 0 && html`<span>${t("count.tokensPerSecond", { n: number(speed, 1) })}</span>`}
    <span>${t("timings.cached", { cached: nCached, n: nCached + nPrompt })}</span>
    ${nCtx > 0 &&
    html`<span class="fill">
      <meter min="0" max=${nCtx} high=${0.8 * nCtx} value=${nUsed} aria-label=${t("timings.inUse")}></meter>
      ${t("timings.ofContext", { percent: percent(nUsed / nCtx) })}
    </span>`}
    ${!isWriting && html`<span>${seconds(timings.prompt_ms + timings.predicted_ms)}</span>`}
    <${IconButton} icon="chart" label=${t("context.title")} onClick=${onOpen} />
    ${isWriting && html`<span class="writing" role="img" aria-label=${t("timings.writing")}></span>`}
  </span>`;
}
