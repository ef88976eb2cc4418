// Throughput and latencies over the last minute.

import { html, useEffect, useRef } from "../html.js";
import uPlot from "../../vendor/uplot.mjs";
import { ms, rate, tick, tickMs } from "./format.js";
import { ago } from "./lanes.js";
import { t } from "./text.js";

const SPAN_S = 60;
const HEIGHT = 150;
const PLOTS = [
  {
    title: t("plot.perSecond"),
    format: rate,
    tick,
    lines: [
      { label: t("plot.generated"), color: "--decode", of: mean((sample) => sample.generated_per_second) },
      { label: t("plot.prompts"), color: "--prefill", of: mean((sample) => sample.prompt_per_second), isRight: true },
    ],
  },
  { title: t("plot.ttft"), format: ms, tick: tickMs, lines: quantiles("ttft_ms") },
  { title: t("plot.itl"), format: ms, tick: tickMs, lines: quantiles("itl_ms") },
];

export function Plots({ samples }) {
  return html`<div class="plots">${PLOTS.map((plot) => html`<${Plot} key=${plot.title} plot=${plot} samples=${samples} />`)}</div>`;
}

function Plot({ plot, samples }) {
  const place = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    const colors = new Colors();
    const made = (chart.current = new uPlot(options(plot, place.current.clientWidth, colors), dataOf(plot, []), place.current));
    const resizing = new ResizeObserver(([{ contentRect }]) => made.setSize({ width: contentRect.width, height: HEIGHT }));
    resizing.observe(place.current);
    const unwatch = colors.onChange(() => made.redraw(false, true));
    return () => {
      resizing.disconnect();
      unwatch();
      made.destroy();
    };
  }, []);
  useEffect(() => chart.current.setData(dataOf(plot, samples)), [samples]);
  const hasValues = plot.lines.some((line) => samples.map(line.of).some(Boolean));
  return html`<figure class="plot">
    <figcaption>
      <h2>${plot.title}</h2>
      <ul class="legend" aria-hidden="true">
        ${plot.lines.map((line) => html`<li class=${line.color.slice(2)}>${line.isRight ? t("plot.onRight", line) : line.label}</li>`)}
      </ul>
      <p class="unseen">${plot.lines.map((line) => describe(line, plot, samples)).join(" ")}</p>
    </figcaption>
    <div class="chart" ref=${place} aria-hidden="true"></div>
    ${!hasValues && html`<p class="soft empty">${t("span.minute.none")}</p>`}
  </figure>`;
}

function quantiles(name) {
  return [
    { label: t("plot.median"), color: "--decode", of: (sample) => sample[name]?.p50 ?? null },
    { label: t("plot.p95"), color: "--soft", of: (sample) => sample[name]?.p95 ?? null, dash: [4, 3] },
  ];
}

/** Averages the last two seconds, since single samples are noisy. */
function mean(of) {
  return (_, i, samples) => {
    const last = samples.slice(Math.max(0, i - 3), i + 1);
    return last.reduce((sum, sample) => sum + of(sample), 0) / last.length;
  };
}

function dataOf(plot, samples) {
  return [samples.map((sample) => sample.t / 1000), ...plot.lines.map((line) => samples.map(line.of))];
}

function describe({ label, of }, { format }, samples) {
  const values = samples.map(of).filter((value) => value !== null);
  if (!values.length) return t("span.minute.nothing", { label });
  const [now, least, most] = [values.at(-1), Math.min(...values), Math.max(...values)].map(format);
  return t("span.minute.values", { label, now, least, most });
}

function options(plot, width, colors) {
  const axis = (more) => ({
    stroke: () => colors.of("--soft"),
    grid: { stroke: () => colors.of("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
    size: 52,
    ...more,
  });
  const values = (_, splits) => splits.map((value) => plot.tick(value));
  const right = plot.lines.some((line) => line.isRight);
  const range = (_, low, high) => [0, high > 0 ? high * 1.15 : 1];
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, right ? 0 : Math.max(12, 4 * t("lane.now").length), 0, 0], // half of the last label
    scales: {
      x: { time: false, range: (u) => [(u.data[0].at(-1) ?? 0) - SPAN_S, u.data[0].at(-1) ?? 0] },
      y: { range },
      right: { range },
    },
    series: [
      {},
      ...plot.lines.map((line) => ({
        label: line.label,
        stroke: () => colors.of(line.color),
        width: 1.75,
        dash: line.dash,
        scale: line.isRight ? "right" : "y",
        points: { show: false },
        spanGaps: false,
      })),
    ],
    axes: [
      axis({ ...agoAxis, size: 24, grid: { show: false } }),
      axis({ values }),
      ...(right ? [axis({ scale: "right", side: 1, values, grid: { show: false } })] : []),
    ],
  };
}

/** Seconds ago. */
const agoAxis = {
  values: (u, splits) => splits.map((at) => ago(Math.round(u.scales.x.max - at))),
  splits: (u) => [60, 40, 20, 0].map((s) => u.scales.x.max - s),
};

/** The page's colours for canvases, updated when the theme changes. */
class Colors {
  #known = new Map();

  of(name) {
    if (!this.#known.has(name)) {
      const probe = document.body.appendChild(document.createElement("i"));
      probe.style.color = `var(${name})`;
      this.#known.set(name, getComputedStyle(probe).color);
      probe.remove();
    }
    return this.#known.get(name);
  }

  onChange(listener) {
    const forget = () => {
      this.#known.clear();
      listener();
    };
    const system = matchMedia("(prefers-color-scheme: dark)");
    const chosen = new MutationObserver(forget);
    system.addEventListener("change", forget);
    chosen.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      system.removeEventListener("change", forget);
      chosen.disconnect();
    };
  }
}
