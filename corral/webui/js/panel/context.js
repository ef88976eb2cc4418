// What fills the context of an answer, what of it was cached, and what the answer and the whole chat have cost.

import { html, useEffect, useState } from "../html.js";
import { ask } from "../api.js";
import { ancestry } from "../tree.js";
import { IconButton } from "../view/icon.js";
import { useModal } from "../view/modal.js";
import { number, percent, seconds, t } from "../more_text.js";

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
      <h2 id="context-title">${t("context.title")}</h2>
      <${IconButton} icon="close" label=${t("common.close")} onClick=${onClose} />
    </header>
    <${Cost} timings=${message.timings} />
    ${nCtx > 0 && html`<${Fill} timings=${message.timings} counts=${counts} nCtx=${nCtx} />`}
    <${Total} chat=${chat} />
  </dialog>`;
}

function Cost({ timings }) {
  const nPrompt = timings.cache_n + timings.prompt_n;
  const isForced = timings.forced_n > timings.predicted_n / 2; // tokens that a grammar forces take no time
  const speed = isForced ? "" : t("count.tokensPerSecond", { n: number(timings.predicted_per_second, 1) });
  return html`<table>
    <caption>${t("context.turn")}</caption>
    <tbody>
      <${Row} name=${t("context.evaluated")} n=${timings.prompt_n} ms=${timings.prompt_ms} />
      <${Row} name=${t("context.cached")} n=${timings.cache_n} note=${t("context.ofPrompt", { percent: share(timings.cache_n, nPrompt) })} />
      <${Row} name=${t("context.answer")} n=${timings.predicted_n} ms=${timings.predicted_ms} note=${speed} />
      ${timings.draft_n > 0 &&
      html`<${Row} name=${t("context.drafts")} n=${timings.draft_n_accepted} note=${t("context.of", { n: timings.draft_n })} />`}
      ${timings.forced_n > 0 && html`<${Row} name=${t("context.forced")} n=${timings.forced_n} note=${t("context.notDrawn")} />`}
      <${Row} name=${t("context.together")} n=${nPrompt + timings.predicted_n} ms=${timings.prompt_ms + timings.predicted_ms} />
    </tbody>
  </table>`;
}

function Fill({ timings, counts, nCtx }) {
  const nPrompt = timings.cache_n + timings.prompt_n;
  const known = (counts ?? []).filter(({ n }) => n > 0);
  const nKnown = known.reduce((sum, { n }) => sum + n, 0);
  const parts = [
    ...known,
    { name: counts ? t("context.template") : t("context.prompt"), n: Math.max(0, nPrompt - nKnown) },
    { name: t("context.thisAnswer"), n: timings.predicted_n },
  ];
  const nFree = Math.max(0, nCtx - nPrompt - timings.predicted_n);
  return html`<h3>${t("context.size", { n: nCtx })}</h3>
    <div class="bar" role="img" aria-label=${t("context.inUse", { percent: share(nCtx - nFree, nCtx) })}>
      ${[...parts, { name: t("context.free"), n: nFree }].map(
        ({ name, n }, i) => html`<span
          key=${name}
          class=${i === parts.length ? "free" : `part part-${i % 6}`}
          style=${{ flexGrow: n }}
          title=${t("context.part", { name, n })}
        ></span>`,
      )}
    </div>
    <div class="bar thin" role="img" aria-label=${t("context.wereCached", { n: timings.cache_n })}>
      <span class="cached" style=${{ flexGrow: timings.cache_n }}></span>
      <span class="free" style=${{ flexGrow: nCtx - timings.cache_n }}></span>
    </div>
    <table>
      <tbody>
        ${parts.map(({ name, n }, i) => html`<${Row} key=${name} name=${name} n=${n} note=${share(n, nCtx)} mark="part-${i % 6}" />`)}
        <${Row} name=${t("context.free")} n=${nFree} note=${share(nFree, nCtx)} mark="free" />
        <${Row}
          name=${t("context.cachedFirst")}
          n=${timings.cache_n}
          note=${t("context.ofPrompt", { percent: share(timings.cache_n, nPrompt) })}
          mark="cached"
        />
      </tbody>
    </table>`;
}

function Total({ chat }) {
  const all = Object.values(chat.messages).flatMap(({ timings }) => timings ?? []);
  const sum = (name) => all.reduce((total, each) => total + (each[name] ?? 0), 0);
  return html`<table>
    <caption>${t("context.all", { n: all.length })}</caption>
    <tbody>
      <${Row} name=${t("context.promptsEvaluated")} n=${sum("prompt_n")} ms=${sum("prompt_ms")} />
      <${Row}
        name=${t("context.promptsCached")}
        n=${sum("cache_n")}
        note=${t("context.ofThem", { percent: share(sum("cache_n"), sum("cache_n") + sum("prompt_n")) })}
      />
      <${Row} name=${t("context.answers")} n=${sum("predicted_n")} ms=${sum("predicted_ms")} />
    </tbody>
  </table>`;
}

function Row({ name, n, ms, note = "", mark = "" }) {
  return html`<tr>
    <th scope="row">${mark && html`<i class="mark ${mark}"></i>`}${name}</th>
    <td>${t("count.tokens", { n })}</td>
    <td>${ms === undefined ? note : note ? t("context.timeAnd", { time: seconds(ms, 2), note }) : seconds(ms, 2)}</td>
  </tr>`;
}

function share(n, total) {
  return percent(total > 0 ? n / total : 0);
}

/** Returns the texts of the prompt by kind: [{ name, text }]. */
function textsOf(chat, message) {
  const path = ancestry(chat, message.parent);
  const said = (role) => path.filter((each) => each.role === role).map(({ content }) => content).join("");
  const calls = path.flatMap(({ toolCalls = [] }) => toolCalls.map((call) => call.name + call.arguments));
  return [
    { name: t("settings.system"), text: chat.system },
    { name: t("context.tools"), text: chat.settings.tools ?? "" },
    { name: t("context.yours"), text: said("user") },
    { name: t("context.earlier"), text: said("assistant") },
    { name: t("context.toolCalls"), text: calls.join("") + said("tool") },
  ].filter(({ text }) => text);
}

async function count(texts) {
  const counted = texts.map(async ({ name, text }) => {
    const { tokens } = await ask("/tokenize", { json: { content: text } });
    return { name, n: tokens.length };
  });
  return Promise.all(counted);
}
