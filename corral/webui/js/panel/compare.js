// Answers side by side, or the differences of two branches.

import { html, useEffect, useState } from "../html.js";
import { ancestry, showBranch, siblings } from "../tree.js";
import { IconButton } from "../view/icon.js";
import { load } from "../view/lazy.js";
import { Markdown } from "../view/markdown.js";
import { useModal } from "../view/modal.js";
import { t } from "../more_text.js";

const NAMES = { user: t("author.user"), assistant: t("author.assistant"), tool: t("author.tool") };
const PATIENCE_MS = 1_000; // for differences word by word
const N_MORE = [1, 2, 3];
const SIDES = [
  [t("compare.from"), t("compare.fromBranch")],
  [t("compare.to"), t("compare.toBranch")],
];

/** `id`: one of the messages. */
export function Panel({ app, state, id, onClose }) {
  const dialog = useModal();
  const { chat, running } = state;
  const [shows, setShows] = useState("columns");
  const message = chat.messages[id];
  const ids = message ? siblings(chat)(message) : [];
  const isBusy = Boolean(running[chat.id]);
  const use = (each) => {
    onClose();
    app.showBranch(each);
  };
  return html`<dialog ref=${dialog} class="compare" aria-labelledby="compare-title" onClose=${onClose}>
    <header class="panel-head">
      <h2 id="compare-title">${t("compare.answers", { n: ids.length })}</h2>
      <span class="row">
        ${ids.length > 1 && html`<${Tab} name="columns" text=${t("compare.sideBySide")} shows=${shows} onPick=${setShows} />
          <${Tab} name="differences" text=${t("compare.differences")} shows=${shows} onPick=${setShows} />`}
        <${IconButton} icon="close" label=${t("common.close")} onClick=${onClose} />
      </span>
    </header>
    ${shows === "columns" || ids.length < 2
      ? html`<${Columns} messages=${ids.map((each) => chat.messages[each])} progress=${running[chat.id]} onUse=${use} />`
      : html`<${Differences} chat=${chat} ids=${ids} first=${id} />`}
    <p class="row end">
      ${isBusy
        ? html`<button type="button" onClick=${() => app.writer.stop()}>${t("common.stop")}</button>`
        : N_MORE.map(
            (n) => html`<button key=${n} type="button" onClick=${() => app.writer.answerAgain(id, n)}>
              ${t("compare.more", { n })}
            </button>`,
          )}
    </p>
  </dialog>`;
}

function Tab({ name, text, shows, onPick }) {
  return html`<button type="button" aria-pressed=${shows === name} onClick=${() => onPick(name)}>${text}</button>`;
}

function Columns({ messages, progress, onUse }) {
  const isBusy = Boolean(progress);
  const isWriting = ({ state }) => isBusy && state === "writing";
  const waitsFor = (each) => isWriting(each) && !each.content && progress[each.id]?.waiting;
  return html`<ol class="columns">
    ${messages.map(
      (each, i) => html`<li key=${each.id} aria-label=${t("compare.answer", { n: i + 1 })}>
        <div class="column-text">
          ${each.reasoning && html`<details class="reasoning"><summary>${t("message.reasoning")}</summary><div class="said" dir="auto">${each.reasoning}</div></details>`}
          <${Markdown} text=${each.content} isWriting=${isWriting(each)} />
          ${waitsFor(each) && html`<p class="soft" role="status">${t("message.waiting", { what: waitsFor(each) })}</p>`}
          ${each.error && html`<p class="error">${each.error}</p>`}
        </div>
        <p class="row">
          <button type="button" disabled=${isBusy} onClick=${() => onUse(each.id)}>${t("compare.use", { n: i + 1 })}</button>
          <span class="soft">${each.timings ? t("count.tokens", { n: each.timings.predicted_n }) : ""}</span>
        </p>
      </li>`,
    )}
  </ol>`;
}

function Differences({ chat, ids, first }) {
  const at = ids.indexOf(first);
  const [pair, setPair] = useState(() => [Math.max(0, at - 1), at || 1]);
  const [diff, setDiff] = useState(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    load("../../vendor/diff.mjs").then((loaded) => setDiff(loaded.default), (error) => setTrouble(error.message));
  }, []);
  const choose = (side) => (event) => setPair(pair.map((each, i) => (i === side ? Number(event.target.value) : each)));
  const [before, after] = pair.map((each) => textOf(chat, ids[each]));
  return html`<div class="row">
      ${SIDES.map(
        ([label, name], side) => html`<label key=${name}>
          ${label}
          <select aria-label=${name} value=${pair[side]} onChange=${choose(side)}>
            ${ids.map((each, i) => html`<option key=${each} value=${i}>${t("compare.branch", { n: i + 1 })}</option>`)}
          </select>
        </label>`,
      )}
    </div>
    ${trouble && html`<p class="error" role="alert">${trouble}</p>`}
    <pre class="diff" tabindex="0" aria-label=${t("compare.differences")}>${diff && partsOf(diff, before, after).map(part)}</pre>`;
}

function part({ value, added, removed }, i) {
  if (added) return html`<ins key=${i}>${value}</ins>`;
  return removed ? html`<del key=${i}>${value}</del>` : html`<span key=${i}>${value}</span>`;
}

function partsOf({ diffWordsWithSpace, diffLines }, before, after) {
  return (
    diffWordsWithSpace(before, after, { timeout: PATIENCE_MS }) ??
    diffLines(before, after, { timeout: PATIENCE_MS }) ?? [
      { value: before, removed: true },
      { value: after, added: true },
    ]
  );
}

/** Returns the text of a message and of what follows it. */
function textOf(chat, id) {
  const { leaf } = showBranch(chat, id);
  const path = ancestry(chat, leaf);
  const [first, ...others] = path.slice(path.findIndex((each) => each.id === id));
  return [first.content, ...others.map(({ role, content }) => t("compare.said", { name: NAMES[role], text: content }))].join("\n\n");
}
