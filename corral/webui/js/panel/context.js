// What fills the context of an answer, what of it was cached, and what the answer and the whole chat have cost.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { ancestry } from "../tree.js";
import { IconButton } from "../view/icon.js";
import { useModal } from "../view/modal.js";

/** `id`: of the answer. */
export function Panel({ state, id, onClose }) {
  const dialog = useModal();
  const { chat, props } = state;
  const message = chat.messages[id];
  const [counts, setCounts] = useState(null);
  useEffect(() => {
    if (message) count(textsOf(chat, message)).then(setCounts, () => setCounts([]));
  }, [id]);
  if (!message?.timings) return null;
  const nCtx = props?.default_generation_settings?.n_ctx ?? 0;
  return html`<dialog ref=${dialog} class="context" aria-labelledby="context-title" onClose=${onClose}>
    <header class="panel-head">
      <h2 id="context-title">Cost and context</h2>
      <${IconButton} icon="close" label="Close" onClick=${onClose} />
    </header>
    <${Cost} timings=${message.timings} />
    ${nCtx > 0 && html`<${Fill} timings=${message.timings} counts=${counts} nCtx=${nCtx} />`}
    <${Total} chat=${chat} />
  </dialog>`;
}

function Cost({ timings: t }) {
  const nPrompt = t.cache_n + t.prompt_n;
  const isForced = t.forced_n > t.predicted_n / 2; // tokens that a grammar forces take no time
  const speed = isForced ? "" : `${t.predicted_per_second.toFixed(1)} tokens/s`;
  return html`<table>
    <caption>This turn</caption>
    <tbody>
      <${Row} name="Prompt, evaluated" n=${t.prompt_n} ms=${t.prompt_ms} />
      <${Row} name="Prompt, cached" n=${t.cache_n} note="${percent(t.cache_n, nPrompt)} of the prompt" />
      <${Row} name="Answer" n=${t.predicted_n} ms=${t.predicted_ms} note=${speed} />
      ${t.draft_n > 0 && html`<${Row} name="Drafts accepted" n=${t.draft_n_accepted} note="of ${t.draft_n}" />`}
      ${t.forced_n > 0 && html`<${Row} name="Forced by the grammar" n=${t.forced_n} note="not drawn" />`}
      <${Row} name="Together" n=${nPrompt + t.predicted_n} ms=${t.prompt_ms + t.predicted_ms} />
    </tbody>
  </table>`;
}

function Fill({ timings: t, counts, nCtx }) {
  const nPrompt = t.cache_n + t.prompt_n;
  const known = (counts ?? []).filter(({ n }) => n > 0);
  const nKnown = known.reduce((sum, { n }) => sum + n, 0);
  const parts = [
    ...known,
    { name: counts ? "Chat template and others" : "Prompt", n: Math.max(0, nPrompt - nKnown) },
    { name: "This answer", n: t.predicted_n },
  ];
  const nFree = Math.max(0, nCtx - nPrompt - t.predicted_n);
  return html`<h3>Context of ${nCtx.toLocaleString("en")} tokens</h3>
    <div class="bar" role="img" aria-label="${percent(nCtx - nFree, nCtx)} of the context is in use">
      ${[...parts, { name: "Free", n: nFree }].map(
        ({ name, n }, i) => html`<span key=${name} class=${name === "Free" ? "free" : `part part-${i % 6}`} style=${{ flexGrow: n }} title="${name}: ${n}"></span>`,
      )}
    </div>
    <div class="bar thin" role="img" aria-label="${t.cache_n} tokens at its beginning were cached">
      <span class="cached" style=${{ flexGrow: t.cache_n }}></span><span class="free" style=${{ flexGrow: nCtx - t.cache_n }}></span>
    </div>
    <table>
      <tbody>
        ${parts.map(({ name, n }, i) => html`<${Row} key=${name} name=${name} n=${n} note=${percent(n, nCtx)} mark="part-${i % 6}" />`)}
        <${Row} name="Free" n=${nFree} note=${percent(nFree, nCtx)} mark="free" />
        <${Row} name="Cached, from the beginning" n=${t.cache_n} note="${percent(t.cache_n, nPrompt)} of the prompt" mark="cached" />
      </tbody>
    </table>`;
}

function Total({ chat }) {
  const all = Object.values(chat.messages).flatMap(({ timings }) => timings ?? []);
  const sum = (name) => all.reduce((total, each) => total + (each[name] ?? 0), 0);
  return html`<table>
    <caption>All ${all.length === 1 ? "one answer" : `${all.length} answers`} of this chat</caption>
    <tbody>
      <${Row} name="Prompts, evaluated" n=${sum("prompt_n")} ms=${sum("prompt_ms")} />
      <${Row} name="Prompts, cached" n=${sum("cache_n")} note="${percent(sum("cache_n"), sum("cache_n") + sum("prompt_n"))} of them" />
      <${Row} name="Answers" n=${sum("predicted_n")} ms=${sum("predicted_ms")} />
    </tbody>
  </table>`;
}

function Row({ name, n, ms, note = "", mark = "" }) {
  return html`<tr>
    <th scope="row">${mark && html`<i class="mark ${mark}"></i>`}${name}</th>
    <td>${n.toLocaleString("en")} ${n === 1 ? "token" : "tokens"}</td>
    <td>${ms === undefined ? note : `${(ms / 1000).toFixed(2)} s${note ? `, ${note}` : ""}`}</td>
  </tr>`;
}

function percent(n, total) {
  return total > 0 ? `${Math.round((100 * n) / total)} %` : "0 %";
}

/** Returns the texts of the prompt by kind: [{ name, text }]. */
function textsOf(chat, message) {
  const path = ancestry(chat, message.parent);
  const said = (role) => path.filter((each) => each.role === role).map(({ content }) => content).join("");
  const calls = path.flatMap(({ toolCalls = [] }) => toolCalls.map((call) => call.name + call.arguments));
  return [
    { name: "System prompt", text: chat.system },
    { name: "Tools", text: chat.settings.tools ?? "" },
    { name: "Your messages", text: said("user") },
    { name: "Earlier answers", text: said("assistant") },
    { name: "Tool calls and results", text: calls.join("") + said("tool") },
  ].filter(({ text }) => text);
}

async function count(texts) {
  const counted = texts.map(async ({ name, text }) => {
    const { tokens } = await ask("/tokenize", { json: { content: text } });
    return { name, n: tokens.length };
  });
  return Promise.all(counted);
}
