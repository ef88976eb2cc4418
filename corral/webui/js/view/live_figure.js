// What the server uses of its machine, in a few characters: read once, and again and again while an answer is written.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { bytes, percent, t } from "../text.js";

const LOOK_MS = 2000;

export function LiveFigure({ isBusy }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    const look = () => document.visibilityState === "visible" && ask("/monitor/hardware").then(setFound, () => setFound(null));
    look();
    const timer = isBusy ? setInterval(look, LOOK_MS) : 0;
    return () => clearInterval(timer);
  }, [isBusy]);
  if (!found) return null;
  const used = found.gpus.reduce((sum, gpu) => sum + gpu.used, 0) || found.memory.used;
  const text = t("sidebar.uses", { cpu: percent(found.cpu.share), memory: bytes(used) });
  return html`<span class="live-figure" title=${found.gpus.length ? t("sidebar.usesGpu") : t("sidebar.usesMemory")}>${text}</span>`;
}
