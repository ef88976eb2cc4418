// The speed of an answer, the cached part of its prompt, and the use of the context.

import { html } from "../html.js";
import { IconButton } from "./icon.js";

export function Timings({ timings, nCtx, isWriting, onOpen }) {
  const { cache_n: nCached, prompt_n: nPrompt, predicted_n: nPredicted } = timings;
  const nUsed = nCached + nPrompt + nPredicted;
  const isForced = timings.forced_n > nPredicted / 2; // tokens that a grammar forces take no time
  const speed = isForced ? 0 : timings.predicted_per_second;
  const promptMs = Math.round(timings.prompt_ms);
  return html`<span class="timings" title="Prompt: ${nCached + nPrompt} tokens, ${nPrompt} of them evaluated in ${promptMs} ms">
    <span>${nPredicted} tokens</span>
    ${speed > 0 && html`<span>${speed.toFixed(1)} tokens/s</span>`}
    <span>${nCached} of ${nCached + nPrompt} cached</span>
    ${nCtx > 0 &&
    html`<span class="fill">
      <meter min="0" max=${nCtx} high=${0.8 * nCtx} value=${nUsed} aria-label="Context in use"></meter>
      ${Math.round((100 * nUsed) / nCtx)} % of the context
    </span>`}
    ${!isWriting && html`<span>${((timings.prompt_ms + timings.predicted_ms) / 1000).toFixed(1)} s</span>`}
    <${IconButton} icon="chart" label="Cost and context" onClick=${onOpen} />
    ${isWriting && html`<span class="writing" role="img" aria-label="Writing"></span>`}
  </span>`;
}
