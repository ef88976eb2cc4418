// Calls of tools that the model made, their arguments, and a place for what the tools answer.

import { html, useState } from "../html.js";
import { Icon } from "./icon.js";

/** `isOpen`: nobody has answered them yet. */
export function ToolCalls({ message, isOpen, app }) {
  const { toolCalls } = message;
  const [results, setResults] = useState({});
  const send = (event) => {
    event.preventDefault();
    const answers = toolCalls.map(({ id }) => ({ toolCallId: id, content: results[id] ?? "" }));
    app.answerCalls(message.id, answers);
  };
  return html`<form class="calls" onSubmit=${send}>
    ${toolCalls.map(
      (call, i) => html`<section class="call" key=${call.id || i} aria-label="Call to ${call.name}">
        <h4><${Icon} name="tool" /> ${call.name}</h4>
        <pre><code>${pretty(call.arguments)}</code></pre>
        ${isOpen &&
        html`<label>
          What it answers
          <textarea
            rows="2"
            value=${results[call.id] ?? ""}
            onInput=${(event) => setResults({ ...results, [call.id]: event.target.value })}
          ></textarea>
        </label>`}
      </section>`,
    )}
    ${isOpen && html`<button type="submit">Send ${toolCalls.length > 1 ? "the results" : "the result"}</button>`}
  </form>`;
}

export function ToolResult({ text }) {
  return html`<pre class="tool-result"><code>${pretty(text)}</code></pre>`;
}

/** JSON with line breaks; anything else as it is, also JSON that is not complete yet. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
