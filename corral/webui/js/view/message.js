// One message and its actions.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { copyText } from "../clipboard.js";
import { useFocus } from "./focus.js";
import { Icon, IconButton } from "./icon.js";
import { Lazy } from "./lazy.js";
import { Remedies } from "./remedies.js";
import { Timings } from "./timings.js";
import { parts, percent, seconds, t } from "../text.js";

const NAMES = { user: t("author.user"), assistant: t("author.assistant"), tool: t("author.tool") };

/** A message that is not `isNear` is only its text, which browsers find, until `near` tells that it comes near. */
export function Message({ isNear, near, ...props }) {
  const { message, isEditing, author } = props;
  const [isDrawn, setDrawn] = useState(isNear);
  const article = useRef(null);
  const isText = !isDrawn && !isEditing && message.state !== "writing";
  useEffect(() => (isText ? near.watch(article.current, () => setDrawn(true)) : undefined), [isText]);
  if (!isText) return html`<${Drawn} ...${props} />`;
  const { role, id, content } = message;
  return html`<article ref=${article} class="message ${role}" aria-label=${NAMES[role]} data-id=${id}>
    <h2 class="author">${author || NAMES[role]}</h2>
    <div class="said" dir="auto">${content}</div>
  </article>`;
}

/** `siblings`: ids of the message and its alternatives. An unchanged message is not rendered again. */
function Drawn({ message, siblings, author, isLast, isBusy, isEditing, progress, nCtx, runs, app }) {
  const [showsTokens, setShowsTokens] = useState(false);
  const isWriting = message.state === "writing" && isBusy;
  return useMemo(
    () => html`<article class="message ${message.role} ${isLast ? "last" : ""}" aria-label=${NAMES[message.role]} data-id=${message.id}>
      <h2 class="author" dir=${author ? "auto" : undefined}>${author || NAMES[message.role]}</h2>
      ${(message.files || message.audio) &&
      html`<${Lazy} from="./file_chips.js" view="SentFiles" files=${message.files} audio=${message.audio} />`}
      ${message.images?.length > 0 && html`<${Images} images=${message.images} />`}
      ${message.reasoning && html`<${Reasoning} text=${message.reasoning} ms=${message.ms} isOver=${Boolean(message.content) || !isWriting} />`}
      ${isEditing
        ? html`<${Editor} message=${message} app=${app} onDone=${() => app.closeEditor(message.id)} />`
        : html`<${Body} message=${message} isWriting=${isWriting} showsTokens=${showsTokens} />`}
      ${message.toolCalls?.length > 0 &&
      html`<${Lazy} from="./tool_calls.js" view="ToolCalls" message=${message} isOpen=${isLast && (!isBusy || Boolean(runs))} runs=${runs} app=${app} />`}
      ${isWriting && html`<${Waiting} message=${message} progress=${progress} />`}
      <${Ending} message=${message} isLast=${isLast} isBusy=${isBusy} app=${app} />
      <footer class="tools">
        ${isWriting && !isEditing && html`<${Lazy} from="./live_actions.js" view="LiveActions" message=${message} app=${app} />`}
        <${Alternatives} message=${message} siblings=${siblings} app=${app} />
        ${message.timings && html`<${Timings}
          timings=${message.timings}
          nCtx=${nCtx}
          isWriting=${isWriting}
          onOpen=${() => app.openPanel("context", { id: message.id })}
        />`}
        <${Actions}
          message=${message}
          isBusy=${isBusy}
          app=${app}
          showsTokens=${showsTokens}
          onEdit=${() => app.openEditor(message.id)}
          onTokens=${() => setShowsTokens(!showsTokens)}
        />
      </footer>
    </article>`,
    [message, siblings.join(), author, isLast, isBusy, progress, nCtx, isEditing, showsTokens, runs],
  );
}

function Body({ message, isWriting, showsTokens }) {
  if (message.role === "tool") return html`<${Lazy} from="./tool_calls.js" view="ToolResult" message=${message} />`;
  if (message.role === "user") return html`<div class="said" dir="auto">${message.content}</div>`;
  if (showsTokens && message.tokens) return html`<${Lazy} from="./token_view.js" view="TokenView" tokens=${message.tokens} />`;
  return html`<${Lazy} from="./markdown.js" view="Markdown" text=${message.content} isWriting=${isWriting} />`;
}

function Images({ images }) {
  return html`<div class="images">
    ${images.map((url, i) => html`<img key=${i} src=${url} alt=${t("message.image", { n: i + 1 })} />`)}
  </div>`;
}

/** Open while the model reasons, then folded, unless somebody has opened or closed it. */
function Reasoning({ text, ms, isOver }) {
  const [chosen, setChosen] = useState(null);
  const isOpen = chosen ?? !isOver;
  const toggle = (event) => {
    event.preventDefault();
    setChosen(!isOpen);
  };
  const over = ms === undefined ? t("message.reasoning") : t("message.reasoned", { time: seconds(ms, ms < 10_000 ? 1 : 0) });
  return html`<details class="reasoning" open=${isOpen}>
    <summary onClick=${toggle}>${isOver ? over : html`<span class="writing"></span>${t("message.reasoningNow")}`}</summary>
    <div class="said" dir="auto">${text}</div>
  </details>`;
}

/** The progress before the first token. */
function Waiting({ message, progress = {} }) {
  const { content, start = 0, reasoning, toolCalls } = message;
  if (content.length > start || (reasoning && !start) || toolCalls?.length) return null; // a branch has the reasoning of another
  const { waiting, prompt } = progress;
  if (prompt && prompt.processed < prompt.total) {
    const bar = html`<progress max=${prompt.total} value=${prompt.processed}></progress>`;
    return html`<p class="soft" role="status">
      ${parts("message.processing", { bar, percent: percent(prompt.processed / prompt.total) })}
    </p>`;
  }
  return html`<p class="soft" role="status">${waiting ? t("message.waiting", { what: waiting }) : html`<span class="writing"></span> ${t("message.waitingFirst")}`}</p>`;
}

/** Why the answer ended, if it is not complete. */
function Ending({ message, isLast, isBusy, app }) {
  if (message.role !== "assistant" || message.state === "writing") return null;
  const isCut = message.finish === "length";
  const isOver = message.remedies?.includes("new"); // the context is full
  const canGoOn = isLast && !isBusy && Boolean(message.content) && !message.toolCalls?.length && !isOver;
  const texts = {
    stopped: t("message.stopped"),
    interrupted: message.error,
    failed: message.error,
    done: isCut ? (isOver ? t("message.full") : t("message.cut")) : "",
  };
  const text = texts[message.state];
  if (!text) return null;
  const isBad = message.state === "failed" || message.state === "interrupted";
  return html`<div class="ending ${isBad ? "bad" : ""}" role=${isBad ? "alert" : undefined}>
    <span>${text}</span>
    ${canGoOn &&
    html`<button type="button" onClick=${() => app.writer.continueAnswer(message.id)}><${Icon} name="go" /> ${t("message.continue")}</button>
      <button type="button" onClick=${() => app.openEditor(message.id)}><${Icon} name="edit" /> ${t("message.editEnd")}</button>`}
    ${isLast && !isBusy && (isBad || isOver) && html`<${Remedies} message=${message} app=${app} />`}
  </div>`;
}

/** The number of this branch, and buttons to switch. */
function Alternatives({ message, siblings, app }) {
  if (siblings.length < 2) return null;
  const at = siblings.indexOf(message.id);
  return html`<span class="alternatives" role="group" aria-label=${t("message.branches")}>
    <${IconButton} icon="left" label=${t("message.previousBranch")} disabled=${at === 0} onClick=${() => app.showBranch(siblings[at - 1])} />
    <span>${at + 1} / ${siblings.length}</span>
    <${IconButton}
      icon="right"
      label=${t("message.nextBranch")}
      disabled=${at === siblings.length - 1}
      onClick=${() => app.showBranch(siblings[at + 1])}
    />
  </span>`;
}

function Actions({ message, isBusy, app, showsTokens, onEdit, onTokens }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(message.content);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  const remove = () => app.removeMessage(message.id);
  return html`<span class="actions">
    <${IconButton} icon=${isCopied ? "check" : "copy"} label=${isCopied ? t("common.copied") : t("common.copy")} onClick=${copy} />
    ${message.role !== "tool" && html`<${IconButton} icon="edit" label=${t("common.edit")} disabled=${isBusy} onClick=${onEdit} />`}
    ${message.role === "assistant" &&
    html`<${IconButton} icon="again" label=${t("message.regenerate")} disabled=${isBusy} onClick=${() => app.writer.regenerate(message.id)} />
      <${IconButton} icon="columns" label=${t("message.compare")} onClick=${() => app.openPanel("compare", { id: message.id })} />`}
    ${message.tokens &&
    html`<${IconButton} icon="tokens" label=${t("message.probabilities")} pressed=${showsTokens} onClick=${onTokens} />`}
    <${IconButton} icon="trash" label=${t("common.delete")} disabled=${isBusy} onClick=${remove} />
  </span>`;
}

function Editor({ message, app, onDone }) {
  const [text, setText] = useState(message.content);
  const area = useFocus();
  const save = () => {
    onDone();
    if (text !== message.content) app.writer.edit(message.id, text);
  };
  const isWriting = message.state === "writing";
  const goOn = () => {
    onDone();
    app.writer.continueAnswer(message.id, text);
  };
  const cancel = () => {
    area.current.closest("article").querySelector(".actions").firstElementChild.focus();
    onDone();
    if (isWriting) app.live.resume(message.id);
  };
  useLayoutEffect(() => {
    if (message.role === "assistant") area.current.setSelectionRange(text.length, text.length);
  }, []);
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      if (isWriting) event.stopPropagation(); // it would stop the answer
      cancel();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) isWriting ? goOn() : save();
  };
  return html`<div class="editor">
    <textarea
      aria-label=${t("message.text")}
      dir="auto"
      rows=${Math.min(20, text.split("\n").length + 1)}
      value=${text}
      ref=${area}
      onInput=${(event) => setText(event.target.value)}
      onKeyDown=${onKeyDown}
    ></textarea>
    <div class="row">
      ${message.role === "assistant" && html`<button type="button" onClick=${goOn}><${Icon} name="go" /> ${t("message.continueHere")}</button>`}
      ${!isWriting &&
      html`<button type="button" class="primary" onClick=${save}>${message.role === "user" ? t("message.sendBranch") : t("message.saveBranch")}</button>`}
      <button type="button" onClick=${cancel}>${t("common.cancel")}</button>
    </div>
  </div>`;
}
