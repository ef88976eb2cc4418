// The speed, length and time of an answer in a line; what else is known of it is behind it.

import { html } from "../html.js";
import { IconButton } from "./icon.js";
import { number, percent, seconds, t } from "../text.js";

export function Timings({ timings, nCtx, isWriting, onOpen }) {
  const { cache_n: nCached, prompt_n: nPrompt, predicted_n: nPredicted } = timings;
  const isForced = timings.forced_n > nPredicted / 2; // tokens that a grammar forces take no time
  const speed = isForced ? 0 : timings.predicted_per_second;
  const about = [
    t("timings.prompt", { n: nCached + nPrompt, evaluated: nPrompt, time: t("unit.ms", { n: timings.prompt_ms }) }),
    t("timings.cached", { cached: nCached, n: nCached + nPrompt }),
    nCtx > 0 && t("timings.ofContext", { percent: percent((nCached + nPrompt + nPredicted) / nCtx) }),
  ];
  return html`<span class="timings" title=${about.filter(Boolean).join("; ")}>
    ${speed > 0 && html`<span>${t("count.tokensPerSecond", { n: number(speed, speed < 10 ? 1 : 0) })}</span>`}
    <span>${t("count.tokens", { n: nPredicted })}</span>
    ${!isWriting && html`<span>${seconds(timings.prompt_ms + timings.predicted_ms)}</span>`}
    ${isWriting && html`<span class="writing" role="img" aria-label=${t("timings.writing")}></span>`}
    <${IconButton} icon="chart" label=${t("context.title")} onClick=${onOpen} />
  </span>`;
}
