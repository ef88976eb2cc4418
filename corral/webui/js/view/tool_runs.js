// Calls that the page can run: their arguments, the question whether they may run, their results.

import { html, useEffect, useState } from "../html.js";
import { decline, isOverLimit, runCalls } from "../tools/loop.js";
import { pathOf } from "../tree.js";
import { Icon } from "./icon.js";
import { loadOwnStyle } from "../style.js";
import { pretty } from "./pretty.js";
import { seconds, t } from "../more_text.js";

await loadOwnStyle("tools");

/** The calls of the last message, which have no results yet. */
export function ToolRuns({ message, app }) {
  const [toolbox, setToolbox] = useState(null);
  const [results, setResults] = useState({}); // of calls that the page cannot run
  useEffect(() => {
    app.tools.box().then(setToolbox);
  }, []);
  if (!toolbox) return null;
  const { chat, callRuns } = app.state;
  const runs = callRuns[message.id] ?? {};
  const isOver = isOverLimit(toolbox, pathOf(chat));
  const own = message.toolCalls.map(({ name }, i) => !toolbox.find(name, chat) && !runs[i]);
  const send = (event) => {
    event.preventDefault();
    for (const i of own.keys()) if (own[i]) app.tools.setRun(message.id, i, { content: results[i] ?? "" });
    runCalls(app, toolbox, chat.id, message, []);
  };
  return html`<form class="calls" onSubmit=${send}>
    ${isOver &&
    html`<p class="soft" role="status">${t("tool.overLimit", { n: toolbox.config.maxSteps })}</p>`}
    ${message.toolCalls.map(
      (call, i) => html`<section class="call" key=${i} aria-label=${t("tool.call", { name: call.name })}>
        <h4><${Icon} name="tool" /> ${call.name}</h4>
        <pre><code>${pretty(call.arguments)}</code></pre>
        ${own[i]
          ? html`<label>
              ${t("tool.result")}
              <textarea rows="2" value=${results[i] ?? ""} onInput=${(event) => setResults({ ...results, [i]: event.target.value })}></textarea>
            </label>`
          : html`<${Run} run=${runs[i]} call=${call} i=${i} message=${message} toolbox=${toolbox} app=${app} />`}
      </section>`,
    )}
    ${own.some(Boolean) && html`<button type="submit">${own.filter(Boolean).length > 1 ? t("tool.sendResults") : t("tool.sendResult")}</button>`}
  </form>`;
}

function Run({ run, call, i, message, toolbox, app }) {
  const { chat } = app.state;
  if (run?.isRunning) return html`<p class="soft" role="status"><span class="writing"></span> ${t("tool.running")}</p>`;
  if (run) return html`<${Result} ...${run} />`;
  const tool = toolbox.find(call.name, chat);
  const allow = (isAlways) => {
    if (isAlways) toolbox.setAlways(tool, true);
    runCalls(app, toolbox, chat.id, message, [i]);
  };
  return html`<p class="row permission" role="group" aria-label=${t("tool.may", { name: call.name })}>
    <button type="button" class="primary" onClick=${() => allow(false)}>${t("tool.once")}</button>
    <button type="button" onClick=${() => allow(true)}>${t("tool.always")}</button>
    <button type="button" onClick=${() => decline(app, chat.id, message, i)}>${t("tool.never")}</button>
  </p>`;
}

/** The result of a call: text from elsewhere, shown as it is. */
export function Result({ content, isError, ms }) {
  return html`<div class="result">
    <p class="soft">${resultText(isError, ms)}</p>
    <pre class="tool-result"><code>${pretty(content)}</code></pre>
  </div>`;
}

function resultText(isError, ms) {
  if (ms === undefined) return isError ? t("tool.failed") : t("tool.result");
  const time = ms < 1000 ? t("unit.ms", { n: ms }) : seconds(ms);
  return isError ? t("tool.failedAfter", { time }) : t("tool.resultAfter", { time });
}
