// One finished request: its phases as bars over time, and why it was slow or not cached, in words.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { IconButton } from "../view/icon.js";
import { useModal } from "../view/modal.js";
import { clock, count, ms, shortId, source, tickMs } from "./format.js";
import { number, percent, t } from "./text.js";

const N_TICKS = 4;

export function Detail({ n, model = "", onClose }) {
  const dialog = useModal();
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    const query = model ? `?model=${encodeURIComponent(model)}` : "";
    ask(`/monitor/requests/${n}${query}`).then(setFound, (error) => setTrouble(error.status === 404 ? t("detail.gone") : error.message));
  }, [n]);
  return html`<dialog ref=${dialog} class="detail" aria-labelledby="detail-title" onClose=${onClose}>
    <div class="title">
      <h2 id="detail-title">${found ? html`${found.path} <span class="soft">${shortId(found.id)}</span>` : t("column.request")}</h2>
      <${IconButton} icon="close" label=${t("common.close")} onClick=${onClose} />
    </div>
    ${!found && html`<p class=${trouble ? "error" : "soft"}>${trouble || t("detail.loading")}</p>`}
    ${found && html`<${Found} found=${found} />`}
  </dialog>`;
}

function Found({ found }) {
  const { tasks, phases, ms: total } = found;
  const rows = [{ name: t("column.request"), phases }, ...tasks.map((task, i) => ({ ...task, name: taskName(tasks, i) }))];
  const groups = tasks.length === 1 ? [{ ...rows[1], phases: inOrder(rows.flatMap((row) => row.phases)) }] : rows;
  return html`<p class="soft">${t("detail.started", { time: clock(found.started), total: ms(total) })}</p>
    <${Flame} rows=${rows} total=${total} />
    <${Phases} groups=${groups} total=${total} />
    <${Why} title=${t("detail.slow")} reasons=${found.why_slow} tell=${(code, values) => t(`why.slow.${code}`, values)} />
    <${Why} title=${t("detail.cache")} reasons=${found.why_not_cached} tell=${(code, values) => t(`why.cache.${code}`, values)} />`;
}

function inOrder(phases) {
  return phases.sort((a, b) => a.from_ms - b.from_ms);
}

function taskName(tasks, i) {
  const { slot } = tasks[i];
  if (tasks.length === 1) return slot === null ? t("detail.noSlot") : t("lane.slot", { id: slot });
  return slot === null ? t("detail.task", { n: i + 1 }) : t("detail.taskInSlot", { n: i + 1, slot });
}

function Flame({ rows, total }) {
  const width = (n) => `${total ? Math.min(100, (100 * n) / total) : 0}%`;
  const ticks = Array.from({ length: N_TICKS + 1 }, (_, i) => (total * i) / N_TICKS);
  return html`<div class="flame" role="img" aria-label=${t("detail.chart", { total: ms(total) })}>
    ${rows.map(
      ({ name, phases, drafts, n_generated }) => html`<div class="flame-row">
        <span class="name">${name}</span>
        <div class="bars">
          ${phases.map(
            (phase) => html`<i
              class="flame-bar phase-${phase.kind}"
              style=${{ left: width(phase.from_ms), width: width(phase.ms) }}
              title=${barText(phase)}
            ></i>`,
          )}
          ${drafts && html`<${Drafts} phase=${phases.find(({ kind }) => kind === "decode")} drafts=${drafts} n=${n_generated} width=${width} />`}
        </div>
      </div>`,
    )}
    <div class="flame-row axis">
      <span></span>
      <div class="ticks">${ticks.map((at) => html`<span>${tickMs(at)}</span>`)}</div>
    </div>
  </div>`;
}

/** The share of the answer that came from drafts, within its bar. */
function Drafts({ phase, drafts, n, width }) {
  if (!phase) return null;
  const share = Math.min(1, drafts.n_accepted / Math.max(1, n));
  const style = { left: width(phase.from_ms), width: width(phase.ms * share) };
  return html`<i class="flame-bar phase-drafts" style=${style} title=${accepted(drafts)}></i>`;
}

function barText({ kind, from_ms, ms: length, n }) {
  const values = { name: t(`phase.${kind}`), from: ms(from_ms), length: ms(length) };
  return n ? t("detail.barTokens", { ...values, n }) : t("detail.bar", values);
}

function accepted({ n, n_accepted, n_steps }) {
  return t("detail.accepted", { n: n_accepted, all: n, steps: n_steps });
}

function Phases({ groups, total }) {
  const share = (n) => (total ? percent(n / total) : "");
  return html`<table class="phases">
    <thead>
      <tr><th class="text" scope="col">${t("detail.phase")}</th><th scope="col">${t("detail.tokens")}</th><th scope="col">${t("detail.time")}</th><th scope="col">${t("detail.share")}</th></tr>
    </thead>
    ${groups.map(
      ({ name, phases, drafts, ...task }) => html`<tbody>
        ${groups.length > 1 && html`<tr><th class="text group" scope="rowgroup" colspan="4">${name}</th></tr>`}
        ${phases.map(
          (phase) => html`<tr>
            <th class="text phase-${phase.kind}" scope="row">
              ${t(`phase.${phase.kind}`)} ${phase.kind === "prefix" && html`<span class="soft">${source(task)}</span>`}
            </th>
            <td>${phase.n ? count(phase.n) : ""}</td>
            <td>${ms(phase.ms)}</td>
            <td class="soft">${share(phase.ms)}</td>
          </tr>`,
        )}
        ${drafts && html`<tr><th class="text phase-drafts" scope="row">${t("phase.drafts")}</th><td class="text" colspan="3">${accepted(drafts)}</td></tr>`}
      </tbody>`,
    )}
  </table>`;
}

/** `tell` returns the text of a reason with its values. */
function Why({ title, reasons, tell }) {
  const [isOpen, setOpen] = useState(false);
  return html`<div class="why">
    <button type="button" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${title}</button>
    ${isOpen && html`<ul>${reasons.map(({ code, values }) => html`<li key=${code} data-code=${code}>${tell(code, inWords(values))}</li>`)}</ul>`}
  </div>`;
}

const tokens = (n) => t("count.tokens", { n });
const VALUES = {
  ...{ time: ms, away: ms, each: ms, mean: ms, age: ms },
  ...{ tokens, common: tokens, moved: tokens },
  share: (n) => percent(n),
  beside: (n) => number(n, 1),
  others: (n) => t("why.others", { n }),
  slots: (n) => t("why.slotsBusy", { n }),
  media: (n) => t("why.media", { n }),
  drafted: (n) => t("why.drafted", { n }),
  verb: (name) => t(`why.verb.${name}`),
  source: (name) => t(`source.${name}`),
};

/** Returns the values of a reason as they read in a sentence. */
function inWords(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, VALUES[name]?.(value) ?? value]));
}
