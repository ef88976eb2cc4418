// Two models side by side on the same prompt, with the system prompt and the settings of the chat.

import { html, useEffect, useRef, useState } from "../html.js";
import { streamAnswers } from "../answer.js";
import { isForChat } from "../many_models.js";
import { loadOwnStyle } from "../style.js";
import { Markdown } from "./markdown.js";
import { useModal } from "./modal.js";
import { modelText } from "./model_text.js";
import { number, seconds, t } from "../more_text.js";

const BEGUN = { role: "assistant", content: "" };

await loadOwnStyle("models");

export function Comparison({ app, state, onClose }) {
  const dialog = useModal();
  const usable = state.models.filter(isForChat);
  const first = usable.find(({ id }) => id === state.props?.model_alias) ?? usable[0];
  const second = usable.find((row) => row !== first) ?? first;
  const [names, setNames] = useState([first.id, second.id]);
  const [answers, setAnswers] = useState([{}, {}]);
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  const isBusy = answers.some(({ isWriting }) => isWriting);
  const change = (side, news) => setAnswers((before) => before.map((each, i) => (i === side ? { ...each, ...news } : each)));
  const ask = (event) => {
    event.preventDefault();
    if (isBusy) return running.current.abort();
    running.current = new AbortController();
    const prompt = new FormData(event.target).get("prompt");
    names.forEach((name, side) => answer(state.chat, prompt, name, running.current.signal, (news) => change(side, news)));
    return undefined;
  };
  return html`<dialog ref=${dialog} class="comparison" onClose=${onClose} aria-labelledby="comparison-title">
    <h2 id="comparison-title">${t("models.compareTitle")}</h2>
    <form onSubmit=${ask}>
      <textarea name="prompt" rows="3" required aria-label=${t("models.prompt")}></textarea>
      <button class="primary">${isBusy ? t("common.stop") : t("models.askBoth")}</button>
    </form>
    <div class="sides">
      ${names.map(
        (name, side) => html`<section key=${side} aria-label=${side ? t("models.second") : t("models.first")}>
          <select aria-label=${side ? t("models.second") : t("models.first")} disabled=${isBusy}
            onChange=${({ target }) => setNames(names.map((each, i) => (i === side ? target.value : each)))}>
            ${usable.map((row) => html`<option key=${row.id} value=${row.id} selected=${row.id === name}>${modelText(row)}</option>`)}
          </select>
          <${Side} answer=${answers[side]} />
        </section>`,
      )}
    </div>
    <form method="dialog" class="row end"><button>${t("common.close")}</button></form>
  </dialog>`;
}

function Side({ answer: { message, waiting, error, isWriting } }) {
  const { content, reasoning, timings } = message ?? {};
  return html`<div class="side" aria-busy=${Boolean(isWriting)}>
    ${isWriting && !content && !reasoning && html`<p class="soft" role="status">${waiting || t("message.waitingFirst")}</p>`}
    ${reasoning && html`<details><summary>${t("message.reasoning")}</summary><div class="said" dir="auto">${reasoning}</div></details>`}
    ${content && html`<${Markdown} text=${content} isWriting=${isWriting} />`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${timings &&
    html`<p class="soft timings">
      ${t("models.timings", {
        tokens: t("count.tokens", { n: timings.predicted_n }),
        speed: number(timings.predicted_per_second, 1),
        time: seconds(timings.prompt_ms, 2),
      })}
    </p>`}
  </div>`;
}

/** Has a model answer; `tell` gets what changes. */
async function answer(chat, content, model, signal, tell) {
  tell({ message: null, waiting: "", error: "", isWriting: true });
  try {
    const onProgress = ({ waiting }) => waiting && tell({ waiting });
    const asked = [{ role: "user", content }];
    for await (const [message] of streamAnswers(chat, asked, [BEGUN], { signal, onProgress, model })) tell({ message });
  } catch (error) {
    if (error.name !== "AbortError") tell({ error: error.message });
  }
  tell({ isWriting: false });
}
