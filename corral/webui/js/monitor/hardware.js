// CPU, memory and GPU memory that the server uses, with their peaks.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { bytes } from "./format.js";
import { percent, t } from "./text.js";

const LOOK_MS = 2000;

export function Hardware() {
  const [found, setFound] = useState(null);
  useEffect(() => {
    const look = () => document.visibilityState === "visible" && ask("/monitor/hardware").then(setFound, () => {}); // the page says why
    look();
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  if (!found) return null;
  const { cpu, memory, gpus } = found;
  return html`<section class="hardware" aria-labelledby="hardware-title">
    <h2 id="hardware-title">${t("hardware.title")}</h2>
    <div class="meters">
      <${Meter} name=${t("hardware.cpu")} share=${cpu.share} peak=${cpu.peak} value=${percent(cpu.share)} most=${percent(cpu.peak)}
        about=${t("hardware.ofCores", { n: cpu.cores, all: percent(cpu.machine) })} />
      <${Meter} name=${t("hardware.memory")} ...${sizes(memory)} />
      ${gpus.map((gpu, i) => html`<${Meter} key=${i} name=${gpus.length > 1 ? t("hardware.gpuN", { n: i }) : t("hardware.gpu")} title=${gpu.name} ...${sizes(gpu)} />`)}
    </div>
  </section>`;
}

function sizes({ used, peak, total }) {
  const of = (n) => (total ? n / total : 0);
  return { share: of(used), peak: of(peak), value: bytes(used), most: bytes(peak), about: t("memory.of", { size: bytes(total) }) };
}

/** A bar with a mark at the peak. */
function Meter({ name, title, share, peak, value, most, about }) {
  const at = (part) => `${100 * Math.min(1, part)}%`;
  return html`<div class="meter" title=${title}>
    <p><span class="soft">${name}</span> <strong>${value}</strong> <span class="soft">${about}</span></p>
    <div class="gauge" aria-hidden="true"><i style=${{ width: at(share) }}></i><b style=${{ left: at(peak) }}></b></div>
    <p class="soft peak">${t("hardware.peak", { value: most })}</p>
  </div>`;
}
