// One finished request: its phases as bars over time, and why it was slow or not cached, in words.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { IconButton } from "../view/icon.js";
import { useModal } from "../view/modal.js";
import { clock, count, ms, shortId, source, tickMs } from "./format.js";

const WORDS = {
  close: "Close",
  loading: "Loading…",
  gone: "Its details are not available: only the last hundred requests have any, for the key that sent them and for administrators.",
  request: "Request",
  phase: "Phase",
  tokens: "Tokens",
  time: "Time",
  share: "Share",
  drafts: "drafts",
  slow: "Why slow?",
  cache: "Why not cached?",
  started: (t, total) => `Arrived at ${t}, took ${total}.`,
  task: (i, slot) => `Task ${i + 1}${slot === null ? "" : `, slot ${slot}`}`,
  slot: (slot) => (slot === null ? "No slot" : `Slot ${slot}`),
  bar: (name, from, length, tokens) => `${name}: ${length}, from ${from}${tokens ? `, ${tokens} tokens` : ""}`,
  accepted: (n, all, steps) => `${n} of ${all} accepted in ${steps} steps`,
  chart: (total) => `Phases over ${total}; the table below has the same numbers`,
};
const PHASES = {
  prepare: "prepare",
  queue: "queue",
  prefix: "cached prefix",
  prompt: "prompt",
  decode: "answer",
  lost: "engine lost",
  send: "send",
};
const N_TICKS = 4;

export function Detail({ n, model = "", onClose }) {
  const dialog = useModal();
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    const query = model ? `?model=${encodeURIComponent(model)}` : "";
    ask(`/monitor/requests/${n}${query}`).then(setFound, (error) => setTrouble(error.status === 404 ? WORDS.gone : error.message));
  }, [n]);
  return html`<dialog ref=${dialog} class="detail" aria-labelledby="detail-title" onClose=${onClose}>
    <div class="title">
      <h2 id="detail-title">${found ? html`${found.path} <span class="soft">${shortId(found.id)}</span>` : WORDS.request}</h2>
      <${IconButton} icon="close" label=${WORDS.close} onClick=${onClose} />
    </div>
    ${!found && html`<p class=${trouble ? "error" : "soft"}>${trouble || WORDS.loading}</p>`}
    ${found && html`<${Found} found=${found} />`}
  </dialog>`;
}

function Found({ found }) {
  const { tasks, phases, ms: total } = found;
  const rows = [{ name: WORDS.request, phases }, ...tasks.map((task, i) => ({ ...task, name: taskName(tasks, i) }))];
  const groups = tasks.length === 1 ? [{ ...rows[1], phases: inOrder(rows.flatMap((row) => row.phases)) }] : rows;
  return html`<p class="soft">${WORDS.started(clock(found.started), ms(total))}</p>
    <${Flame} rows=${rows} total=${total} />
    <${Phases} groups=${groups} total=${total} />
    <${Why} title=${WORDS.slow} reasons=${found.why_slow} />
    <${Why} title=${WORDS.cache} reasons=${found.why_not_cached} />`;
}

function inOrder(phases) {
  return phases.sort((a, b) => a.from_ms - b.from_ms);
}

function taskName(tasks, i) {
  return tasks.length > 1 ? WORDS.task(i, tasks[i].slot) : WORDS.slot(tasks[i].slot);
}

function Flame({ rows, total }) {
  const percent = (n) => `${total ? Math.min(100, (100 * n) / total) : 0}%`;
  const ticks = Array.from({ length: N_TICKS + 1 }, (_, i) => (total * i) / N_TICKS);
  return html`<div class="flame" role="img" aria-label=${WORDS.chart(ms(total))}>
    ${rows.map(
      ({ name, phases, drafts, n_generated }) => html`<div class="flame-row">
        <span class="name">${name}</span>
        <div class="bars">
          ${phases.map(
            (phase) => html`<i
              class="flame-bar phase-${phase.kind}"
              style=${{ left: percent(phase.from_ms), width: percent(phase.ms) }}
              title=${WORDS.bar(PHASES[phase.kind], ms(phase.from_ms), ms(phase.ms), phase.n && count(phase.n))}
            ></i>`,
          )}
          ${drafts && html`<${Drafts} phase=${phases.find(({ kind }) => kind === "decode")} drafts=${drafts} n=${n_generated} percent=${percent} />`}
        </div>
      </div>`,
    )}
    <div class="flame-row axis">
      <span></span>
      <div class="ticks">${ticks.map((t) => html`<span>${tickMs(t)}</span>`)}</div>
    </div>
  </div>`;
}

/** The share of the answer that came from drafts, within its bar. */
function Drafts({ phase, drafts, n, percent }) {
  if (!phase) return null;
  const width = percent(phase.ms * Math.min(1, drafts.n_accepted / Math.max(1, n)));
  return html`<i class="flame-bar phase-drafts" style=${{ left: percent(phase.from_ms), width }} title=${accepted(drafts)}></i>`;
}

function accepted({ n, n_accepted, n_steps }) {
  return WORDS.accepted(count(n_accepted), count(n), count(n_steps));
}

function Phases({ groups, total }) {
  const share = (n) => (total ? `${Math.round((100 * n) / total)} %` : "");
  return html`<table class="phases">
    <thead>
      <tr><th class="text" scope="col">${WORDS.phase}</th><th scope="col">${WORDS.tokens}</th><th scope="col">${WORDS.time}</th><th scope="col">${WORDS.share}</th></tr>
    </thead>
    ${groups.map(
      ({ name, phases, drafts, ...task }) => html`<tbody>
        ${groups.length > 1 && html`<tr><th class="text group" scope="rowgroup" colspan="4">${name}</th></tr>`}
        ${phases.map(
          (phase) => html`<tr>
            <th class="text phase-${phase.kind}" scope="row">
              ${PHASES[phase.kind]} ${phase.kind === "prefix" && html`<span class="soft">${source(task)}</span>`}
            </th>
            <td>${phase.n ? count(phase.n) : ""}</td>
            <td>${ms(phase.ms)}</td>
            <td class="soft">${share(phase.ms)}</td>
          </tr>`,
        )}
        ${drafts && html`<tr><th class="text phase-drafts" scope="row">${WORDS.drafts}</th><td class="text" colspan="3">${accepted(drafts)}</td></tr>`}
      </tbody>`,
    )}
  </table>`;
}

function Why({ title, reasons }) {
  const [isOpen, setOpen] = useState(false);
  return html`<div class="why">
    <button type="button" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${title}</button>
    ${isOpen && html`<ul>${reasons.map(({ code, text }) => html`<li data-code=${code}>${text}</li>`)}</ul>`}
  </div>`;
}
