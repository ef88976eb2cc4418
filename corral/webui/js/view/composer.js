// The message box: text, images by button, paste and drop (anywhere on the page), send and stop.

import { html, useEffect, useRef, useState } from "../html.js";
import { filesOf, hasFiles, readImages } from "../attachment.js";
import { draftOf, keepDraft } from "../draft.js";
import { Attachments } from "./attachments.js";
import { useFileDrop } from "./file_drop.js";
import { Icon, IconButton } from "./icon.js";

export function Composer({ app, state }) {
  const { chat, running, props, server } = state;
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [refusal, setRefusal] = useState(""); // why a file was not added
  const [reasoning, setReasoning] = useState(null); // the switch, for a model that reasons
  const area = useRef(null);
  const file = useRef(null);
  const isBusy = Boolean(running[chat.id]);
  const sees = Boolean(props?.modalities?.vision);
  const canSend = server === "ready" && !isBusy && (text.trim() !== "" || images.length > 0);

  useEffect(() => {
    setText(draftOf(chat.id));
    setImages([]);
    setRefusal("");
    area.current.focus();
  }, [chat.id]);
  useEffect(() => {
    setText(draftOf(chat.id));
    area.current.focus();
  }, [state.nDrafts]);
  useEffect(() => grow(area.current), [text]);
  useEffect(() => {
    if (/think|reasoning_effort/.test(props?.chat_template)) import("./reasoning_switch.js").then(setReasoning);
  }, [props]);

  const write = (value) => {
    setText(value);
    setRefusal("");
    keepDraft(chat.id, value);
  };
  const send = () => {
    if (!canSend) return;
    write("");
    setImages([]);
    app.send(text.trim(), images.map(({ url }) => url));
  };
  const add = async (files) => {
    setRefusal("");
    try {
      requireSight(props, files);
      const more = await readImages(files, images.length);
      setImages((before) => [...before, ...more]);
    } catch (error) {
      setRefusal(error.message);
    }
  };
  const isOver = useFileDrop(add);
  const onPaste = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    add(filesOf(event));
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer ${isOver ? "over" : ""}" onSubmit=${(event) => (event.preventDefault(), send())}>
    ${refusal && html`<p class="refusal error" role="alert">${refusal}</p>`}
    <${Attachments} images=${images} onRemove=${(at) => setImages(images.filter((_, i) => i !== at))} />
    <div class="composer-row">
      <${IconButton} icon="book" label="Prompts" onClick=${() => app.openPanel("prompts")} />
      ${sees &&
      html`<${IconButton} icon="image" label="Add images" onClick=${() => file.current.click()} />
        <input
          ref=${file}
          type="file"
          accept="image/*"
          multiple
          hidden
          aria-label="Images"
          onChange=${(event) => add([...event.target.files]).then(() => (file.current.value = ""))}
        />`}
      ${reasoning && html`<${reasoning.ReasoningSwitch} app=${app} chat=${chat} levels=${reasoning.levelsOf(props)} />`}
      <textarea
        id="composer"
        ref=${area}
        rows="1"
        aria-label="Your message"
        placeholder="Write a message"
        value=${text}
        onInput=${(event) => write(event.target.value)}
        onKeyDown=${onKeyDown}
        onPaste=${onPaste}
      ></textarea>
      ${isBusy
        ? html`<button type="button" class="primary round" aria-label="Stop" title="Stop (Esc)" onClick=${() => app.stop()}>
            <${Icon} name="stop" />
          </button>`
        : html`<button type="submit" class="primary round" aria-label="Send" title="Send (Enter)" disabled=${!canSend}>
            <${Icon} name="send" />
          </button>`}
    </div>
  </form>`;
}

/** Throws an Error unless the model supports images. */
function requireSight(props, [file]) {
  const name = file?.name || "That";
  if (!props) throw new Error(`${name} cannot be added before the server is ready.`);
  if (props.modalities?.vision) return;
  throw new Error(`${name} cannot be added: this model supports only text. Copy and paste the text of the file instead.`);
}

/** Fits the height to the text, up to a limit in the style sheet. */
function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
