// Answers side by side, or the differences of two branches.

import { html, useEffect, useState } from "../html.js";
import { ancestry, showBranch, siblings } from "../tree.js";
import { IconButton } from "../view/icon.js";
import { Markdown } from "../view/markdown.js";
import { useModal } from "../view/modal.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };
const PATIENCE_MS = 1_000; // for differences word by word
const N_MORE = [1, 2, 3];

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
      <h2 id="compare-title">${ids.length === 1 ? "One answer" : `${ids.length} answers`}</h2>
      <span class="row">
        ${ids.length > 1 && html`<${Tab} name="columns" text="Side by side" shows=${shows} onPick=${setShows} />
          <${Tab} name="differences" text="Differences" shows=${shows} onPick=${setShows} />`}
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </span>
    </header>
    ${shows === "columns" || ids.length < 2
      ? html`<${Columns} messages=${ids.map((each) => chat.messages[each])} isBusy=${isBusy} onUse=${use} />`
      : html`<${Differences} chat=${chat} ids=${ids} first=${id} />`}
    <p class="row end">
      ${isBusy
        ? html`<button type="button" onClick=${() => app.stop()}>Stop</button>`
        : N_MORE.map(
            (n) => html`<button key=${n} type="button" onClick=${() => app.answerAgain(id, n)}>
              ${n} more
            </button>`,
          )}
    </p>
  </dialog>`;
}

function Tab({ name, text, shows, onPick }) {
  return html`<button type="button" aria-pressed=${shows === name} onClick=${() => onPick(name)}>${text}</button>`;
}

function Columns({ messages, isBusy, onUse }) {
  return html`<ol class="columns">
    ${messages.map(
      (each, i) => html`<li key=${each.id} aria-label="Answer ${i + 1}">
        <div class="column-text">
          ${each.reasoning && html`<details class="reasoning"><summary>Reasoning</summary><div class="said">${each.reasoning}</div></details>`}
          <${Markdown} text=${each.content} isWriting=${isBusy && each.state === "writing"} />
          ${each.error && html`<p class="error">${each.error}</p>`}
        </div>
        <p class="row">
          <button type="button" disabled=${isBusy} onClick=${() => onUse(each.id)}>Use answer ${i + 1}</button>
          <span class="soft">${each.timings ? `${each.timings.predicted_n} tokens` : ""}</span>
        </p>
      </li>`,
    )}
  </ol>`;
}

function Differences({ chat, ids, first }) {
  const at = ids.indexOf(first);
  const [pair, setPair] = useState(() => [Math.max(0, at - 1), at || 1]);
  const [diff, setDiff] = useState(null);
  useEffect(() => {
    import("../../vendor/diff.mjs").then((loaded) => setDiff(loaded.default));
  }, []);
  const choose = (side) => (event) => setPair(pair.map((each, i) => (i === side ? Number(event.target.value) : each)));
  const [before, after] = pair.map((each) => textOf(chat, ids[each]));
  return html`<div class="row">
      ${["From", "To"].map(
        (label, side) => html`<label key=${label}>
          ${label}
          <select aria-label="${label} branch" value=${pair[side]} onChange=${choose(side)}>
            ${ids.map((each, i) => html`<option key=${each} value=${i}>Branch ${i + 1}</option>`)}
          </select>
        </label>`,
      )}
    </div>
    <pre class="diff" tabindex="0" aria-label="Differences">${diff && partsOf(diff, before, after).map(part)}</pre>`;
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
  return [first.content, ...others.map(({ role, content }) => `${NAMES[role]}: ${content}`)].join("\n\n");
}
