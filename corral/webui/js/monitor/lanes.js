// Slots as lanes over the last minute: their work, the queue below them, and the use of their KV cache.

import { html, useLayoutEffect, useRef, useState } from "../html.js";
import { apiKey } from "../api.js";
import { about, count, ms, shortId, source } from "./format.js";
import { listed, parts, t } from "./text.js";

const SPAN_MS = 60_000;
const EPOCH_MS = 600_000;
const TICKS = [60, 45, 30, 15, 0];

export function Lanes({ title = t("lane.slots"), snapshot, lag, isLive, prompts, onPrompts }) {
  const [shown, setShown] = useState(null);
  const lanes = useRef(null);
  const { slots, segments, samples, queue, engine } = snapshot;
  const base = Math.floor(snapshot.now / EPOCH_MS) * EPOCH_MS; // the origin of positions, which keeps them small
  useScroll(lanes, base, snapshot.now, lag, isLive);
  const segment = segments.find((each) => each.n === shown);
  return html`<section class="lanes-panel" aria-label=${title}>
    <div class="title">
      <h2>${title}</h2>
      <ul class="legend" aria-hidden="true">
        <li class="prefill">${t("lane.prompt")}</li>
        <li class="cached">${t("lane.cached")}</li>
        <li class="decode">${t("lane.answer")}</li>
        <li class="shared">${t("lane.shared")}</li>
        <li class="restart">${t("lane.restart")}</li>
      </ul>
      ${apiKey() &&
      html`<label class="check">
        <input type="checkbox" checked=${prompts} onChange=${(event) => onPrompts(event.target.checked)} />
        ${t("lane.showPrompts")}
      </label>`}
    </div>
    <div class="lanes" ref=${lanes} onKeyDown=${onArrow} onMouseLeave=${() => setShown(null)}>
      ${slots.map(
        (slot) => html`<${Lane}
          key=${slot.id}
          slot=${slot}
          segments=${segments.filter((each) => each.slot === slot.id)}
          restarts=${engine.restarts}
          base=${base}
          now=${snapshot.now}
          nCtx=${engine.n_ctx}
          prompt=${snapshot.prompts?.find((each) => each.slot === slot.id)?.prompt}
          onShow=${setShown}
        />`,
      )}
      ${!slots.length && html`<p class="soft empty">${t("lane.noSlots")}</p>`}
      <${Queue} samples=${samples} queue=${queue} base=${base} now=${snapshot.now} />
      <div class="lane-row axis" aria-hidden="true">
        <span></span>
        <div class="ticks">${TICKS.map((s) => html`<span>${ago(s)}</span>`)}</div>
        <span>${t("lane.ofTokens", { n: engine.n_ctx })}</span>
      </div>
    </div>
    <p class="details soft">
      ${segment
        ? tell(segment, snapshot.now)
        : segments.length
          ? t("lane.hint")
          : t("lane.empty")}
    </p>
  </section>`;
}

function Lane({ slot, segments, restarts, base, now, nCtx, prompt, onShow }) {
  const last = segments.at(-1)?.n;
  return html`<div class="lane-row" role="group" aria-label=${slot.is_processing ? t("lane.busy", slot) : t("lane.idle", slot)}>
    <span class="name ${slot.is_processing ? "busy" : ""}">${t("lane.slot", slot)}</span>
    <div class="lane">
      <div class="track">
        ${segments.map(
          (segment) => html`<${Piece} key=${segment.n} segment=${segment} base=${base} now=${now} isLast=${segment.n === last} onShow=${onShow} />`,
        )}
        ${restarts.map((at) => html`<i key=${at} class="restart" style=${{ left: percent(at - base) }}></i>`)}
      </div>
      ${prompt !== undefined && html`<span class="prompt">${prompt}</span>`}
    </div>
    <${Holding} slot=${slot} nCtx=${nCtx} />
  </div>`;
}

function Piece({ segment, base, now, isLast, onShow }) {
  const { phase, from, to, n, lost, n_cached, n_prompt } = segment;
  const style = {
    left: percent(from - base),
    // A running span extends beyond the current time.
    width: percent((to ?? now + SPAN_MS) - from),
    "--part": `${n_prompt ? (100 * n_cached) / n_prompt : 0}%`,
  };
  return html`<button
    type="button"
    class="piece ${phase} ${lost ? "lost" : ""} ${to === null ? "open" : ""}"
    style=${style}
    tabindex=${isLast ? 0 : -1}
    aria-label=${tell(segment, now)}
    onMouseEnter=${() => onShow(n)}
    onFocus=${() => onShow(n)}
    onBlur=${() => onShow(null)}
  ></button>`;
}

function Holding({ slot: { n_held, n_cached, source: from }, nCtx }) {
  const shared = from === "own" || from === "none" ? 0 : n_cached;
  const values = { n: n_held, room: count(nCtx), shared };
  const text = shared ? t("lane.heldShared", values) : t("lane.held", values);
  const width = (n) => `${nCtx ? Math.min(100, (100 * n) / nCtx) : 0}%`;
  return html`<div class="holding" role="img" aria-label=${t("lane.holds", { what: text })} title=${text}>
    <span class="bar"><i class="held" style=${{ width: width(n_held) }}></i><i class="shared" style=${{ width: width(shared) }}></i></span>
    <span class="soft number">${shared ? parts("lane.sharedOf", { shared: html`<em>${about(shared)}</em>`, n: about(n_held) }) : about(n_held)}</span>
  </div>`;
}

/** The number of waiting requests as columns; the label lists the current ones. */
function Queue({ samples, queue, base, now }) {
  const most = Math.max(1, queue.n, ...samples.map((sample) => sample.n_waiting));
  const names = queue.first.map(({ id, key, since }) => {
    return t("lane.waitingFor", { name: `${shortId(id)}${key ? ` (${key})` : ""}`, time: ms(now - since) });
  });
  const label = queue.n ? t("lane.waitingList", { n: queue.n, names: listed(names) }) : t("lane.queueEmpty");
  return html`<div class="lane-row queue" role="group" aria-label=${t("lane.queue")}>
    <span class="name ${queue.n ? "warn" : ""}">${t("lane.queue")}</span>
    <div class="lane" role="img" aria-label=${label} title=${label}>
      <div class="track">
        ${samples.map((sample, i) => {
          if (!sample.n_waiting) return null;
          const from = samples[i - 1]?.t ?? sample.t - 500;
          const style = { left: percent(from - base), width: `calc(${percent(sample.t - from)} + 1px)`, height: `${(100 * sample.n_waiting) / most}%` };
          return html`<i key=${sample.t} class="waiting" style=${style}></i>`;
        })}
      </div>
    </div>
    <span class="number soft">${queue.n ? t("lane.nWaiting", queue) : t("lane.none")}</span>
  </div>`;
}

/** Moves the tracks with time: every frame, or with every event for reduced motion. */
function useScroll(lanes, base, now, lag, isLive) {
  const smooth = useRef(lag);
  smooth.current += (lag - smooth.current) / 8; // the delay of events varies
  const place = (at) => lanes.current.style.setProperty("--shift", `${(-100 * (at - base)) / SPAN_MS}%`);
  useLayoutEffect(() => {
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    if (!isLive || still.matches) return place(now);
    let frame = 0;
    const step = () => {
      place(Date.now() - smooth.current);
      frame = requestAnimationFrame(step);
    };
    step();
    return () => cancelAnimationFrame(frame);
  }, [now, isLive]);
}

/** Left and right move between the spans of a lane, up and down between lanes. */
function onArrow(event) {
  const piece = event.target.closest(".piece");
  const pieces = [...(piece?.parentElement.querySelectorAll(".piece") ?? [])];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const jump = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  let next = step && pieces[pieces.indexOf(piece) + step];
  if (piece && jump) {
    const rows = [...event.currentTarget.querySelectorAll(".lane-row")].filter((row) => row.querySelector(".piece"));
    next = [...(rows[rows.indexOf(piece.closest(".lane-row")) + jump]?.querySelectorAll(".piece") ?? [])].at(-1);
  }
  if (next) {
    next.focus();
    event.preventDefault();
  }
}

function percent(span) {
  return `${(100 * span) / SPAN_MS}%`;
}

export function ago(s) {
  return s ? `−${t("unit.s", { n: s })}` : t("lane.now");
}

function tell(segment, now) {
  const { phase, from, to, id, key, n_prompt, n_cached, n_done, lost } = segment;
  const time = ms((to ?? now) - from);
  const facts = [
    phase === "prefill" ? t("lane.tellPrompt", { n: n_done, all: n_prompt }) : t("lane.tellAnswer", { n: n_done }),
    n_cached && t("lane.tellCached", { n: n_cached, source: source(segment) }),
    to === null ? t("lane.soFar", { time }) : time,
    lost && t("lane.lost"),
  ];
  const sender = [id ? t("lane.request", { id }) : t("lane.ownRequest"), key && t("lane.key", { key })];
  const joined = (all, mark) => all.filter(Boolean).join(mark);
  return `${t("lane.slot", { id: segment.slot })}: ${joined(facts, "; ")}. ${joined(sender, ", ")}.`;
}
