// Tool calls of the model, their arguments, and fields for the results.

import { html, useState } from "../html.js";
import { Icon } from "./icon.js";
import { Lazy } from "./lazy.js";
import { pretty } from "./pretty.js";
import { t } from "../more_text.js";

/** `isOpen`: the results are missing. */
export function ToolCalls({ message, isOpen, app }) {
  const { toolCalls } = message;
  const [results, setResults] = useState({});
  if (isOpen && app.tools.isUsed(app.state.chat)) return html`<${Lazy} from="./tool_runs.js" view="ToolRuns" message=${message} app=${app} />`;
  const send = (event) => {
    event.preventDefault();
    const answers = toolCalls.map(({ id }) => ({ toolCallId: id, content: results[id] ?? "" }));
    app.writer.answerCalls(message.id, answers);
  };
  return html`<form class="calls" onSubmit=${send}>
    ${toolCalls.map(
      (call, i) => html`<section class="call" key=${call.id || i} aria-label=${t("tool.call", { name: call.name })}>
        <h4><${Icon} name="tool" /> ${call.name}</h4>
        <pre><code>${pretty(call.arguments)}</code></pre>
        ${isOpen &&
        html`<label>
          ${t("tool.result")}
          <textarea
            rows="2"
            value=${results[call.id] ?? ""}
            onInput=${(event) => setResults({ ...results, [call.id]: event.target.value })}
          ></textarea>
        </label>`}
      </section>`,
    )}
    ${isOpen && html`<button type="submit">${toolCalls.length > 1 ? t("tool.sendResults") : t("tool.sendResult")}</button>`}
  </form>`;
}

export function ToolResult({ message: { content, ms, isError } }) {
  if (ms !== undefined) return html`<${Lazy} from="./tool_runs.js" view="Result" content=${content} ms=${ms} isError=${isError} />`;
  return html`<pre class="tool-result"><code>${pretty(content)}</code></pre>`;
}
