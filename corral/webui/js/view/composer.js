// The message box: text, files by button, paste and drop (anywhere on the page), recordings, send and stop.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { draftOf, keepDraft, keepParts, partsOf } from "../draft.js";
import { filesOf, hasFiles, useFileDrop } from "./file_drop.js";
import { Icon, TextButton } from "./icon.js";
import { Lazy, load } from "./lazy.js";
import { number, percent, t } from "../text.js";
import { pathOf } from "../tree.js";

const MAX_PASTED = 2500; // characters; more of them become a file
const TOUCH = matchMedia("(pointer: coarse)"); // its keyboards have no Shift+Enter

export function Composer({ app, state }) {
  const { chat, running, props, server } = state;
  const [text, setText] = useState("");
  const [, redraw] = useState(0);
  const [refusal, setRefusal] = useState(""); // why a file was not added
  const [showsTools, setShowsTools] = useState(false);
  const [reasoning, setReasoning] = useState(null); // the switch, for a model that reasons
  const area = useRef(null);
  const file = useRef(null);
  const isBusy = Boolean(running[chat.id]);
  const parts = partsOf(chat.id);
  const { images, files, audio } = parts;
  const setParts = (change) => {
    keepParts(chat.id, change); // files of a message that is no longer shown may still be read
    redraw((n) => n + 1);
  };
  const canSend = server === "ready" && !isBusy && (text.trim() !== "" || images.length + files.length + audio.length > 0);

  useLayoutEffect(() => {
    setText(draftOf(chat.id));
    setRefusal("");
    focus(area.current);
  }, [chat.id]);
  useEffect(() => {
    setText(draftOf(chat.id));
    focus(area.current);
  }, [state.nDrafts]);
  useEffect(() => grow(area.current), [text]);
  useEffect(() => {
    if (/think|reasoning_effort/.test(props?.chat_template)) load("./reasoning_switch.js").then(setReasoning, () => {});
  }, [props]);

  const write = (value) => {
    setText(value);
    setRefusal("");
    keepDraft(chat.id, value);
  };
  const send = () => {
    if (!canSend) return;
    write("");
    setParts();
    app.writer.send(text.trim(), images.map(({ url }) => url), { files: files.map(({ source: _, ...kept }) => kept), audio });
  };
  const add = async (given) => {
    setRefusal("");
    try {
      if (!props) throw new Error(t("composer.notReady", { name: given[0]?.name || t("file.theFile") }));
      const { vision: sees, audio: hears } = props.modalities ?? {};
      const { readAll } = await load("../files/read.js");
      const more = await readAll(given, { images: images.length, files: files.length }, { sees, hears });
      setParts((now) => Object.fromEntries(Object.entries(now).map(([kind, items]) => [kind, [...items, ...more[kind]]])));
    } catch (error) {
      setRefusal(error.message);
    }
  };
  const isOver = useFileDrop(add);
  const onPaste = (event) => {
    const long = hasFiles(event) ? "" : event.clipboardData.getData("text/plain");
    if (!hasFiles(event) && long.length <= MAX_PASTED) return;
    event.preventDefault();
    add(long ? [new File([long], `${t("composer.pasted")}.txt`, { type: "text/plain" })] : filesOf(event));
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || TOUCH.matches) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer ${isOver ? "over" : ""}" onSubmit=${(event) => (event.preventDefault(), send())}>
    ${refusal && html`<p class="refusal error" role="alert">${refusal}</p>`}
    ${images.length > 0 &&
    html`<${Lazy}
      from="./attachments.js"
      view="Attachments"
      images=${images}
      onRemove=${(at) => setParts((now) => ({ ...now, images: now.images.filter((_, i) => i !== at) }))}
    />`}
    ${files.length + audio.length > 0 &&
    html`<${Lazy} key=${chat.id} from="./file_chips.js" view="FileChips" parts=${parts} onChange=${setParts} props=${props} />`}
    <textarea
      id="composer"
      ref=${area}
      rows="1"
      aria-label=${t("composer.yourMessage")}
      dir="auto"
      placeholder=${t("composer.write")}
      value=${text}
      onInput=${(event) => write(event.target.value)}
      onKeyDown=${onKeyDown}
      onPaste=${onPaste}
    ></textarea>
    <div class="composer-row">
      <${TextButton} icon="book" label=${t("composer.prompts")} onClick=${() => app.openPanel("prompts")} />
      <${TextButton} icon="clip" label=${t("composer.addFiles")} onClick=${() => file.current.click()} />
      <input
        id="files"
        ref=${file}
        type="file"
        multiple
        hidden
        aria-label=${t("composer.files")}
        onChange=${(event) => add([...event.target.files]).then(() => (file.current.value = ""))}
      />
      <${TextButton} icon="tool" label=${t("composer.tools")} pressed=${app.tools.isUsed(chat)} onClick=${() => setShowsTools(true)} />
      ${props?.modalities?.audio &&
      html`<${Lazy}
        from="./recorder.js"
        view="Recorder"
        onError=${setRefusal}
        onAudio=${(item) => setParts((now) => ({ ...now, audio: [...now.audio, item] }))}
      />`}
      ${reasoning && html`<${reasoning.ReasoningSwitch} app=${app} chat=${chat} levels=${reasoning.levelsOf(props)} />`}
      <span class="space"></span>
      <${Gauge} app=${app} chat=${chat} nCtx=${props?.default_generation_settings?.n_ctx} />
      ${isBusy
        ? html`<button type="button" class="primary round" aria-label=${t("common.stop")} title=${t("composer.stopKey")} onClick=${() => app.writer.stop()}>
            <${Icon} name="stop" />
          </button>`
        : html`<button type="submit" class="primary round" aria-label=${t("composer.send")} title=${t("composer.sendKey")} disabled=${!canSend}>
            <${Icon} name="send" />
          </button>`}
    </div>
  </form>
  ${showsTools && html`<${Lazy} from="./tools_dialog.js" view="ToolsDialog" app=${app} onClose=${() => setShowsTools(false)} />`}`;
}

/** How full the context is after the last answer that is shown. */
function Gauge({ app, chat, nCtx }) {
  const last = pathOf(chat).findLast(({ timings }) => timings);
  if (!last || !nCtx) return null;
  const { cache_n: nCached, prompt_n: nPrompt, predicted_n: nPredicted } = last.timings;
  const share = Math.min(1, (nCached + nPrompt + nPredicted) / nCtx);
  const label = t("composer.context", { percent: percent(share), n: nCtx });
  return html`<button type="button" class="plain gauge" aria-label=${label} title=${label} onClick=${() => app.openPanel("context", { id: last.id })}>
    <i class="ring ${share > 0.8 ? "high" : ""}" style=${{ "--share": `${100 * share}%` }}></i>
    <span>${percent(share)}</span><span class="wide">${t("composer.ofContext", { n: number(nCtx) })}</span>
  </button>`;
}

/** On a touch screen this would bring its keyboard, which hides half of the page. */
function focus(area) {
  if (!TOUCH.matches) area.focus();
}

/** Fits the height to the text, up to a limit in the style sheet. */
function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
