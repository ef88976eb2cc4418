// Where one writes: text, pictures by button, paste and drop, send and stop.

import { html, useEffect, useRef, useState } from "../html.js";
import { picturesOf, readPictures } from "../attachment.js";
import { Attachments } from "./attachments.js";
import { Icon, IconButton } from "./icon.js";

const DRAFT = "corral.draft.";

export function Composer({ room, state }) {
  const { chat, running, props, server } = state;
  const [text, setText] = useState("");
  const [pictures, setPictures] = useState([]);
  const [isOver, setOver] = useState(false);
  const area = useRef(null);
  const file = useRef(null);
  const isBusy = Boolean(running[chat.id]);
  const sees = Boolean(props?.modalities?.vision);
  const canSend = server === "ready" && !isBusy && (text.trim() !== "" || pictures.length > 0);

  useEffect(() => {
    setText(sessionStorage.getItem(DRAFT + chat.id) ?? "");
    setPictures([]);
    area.current.focus();
  }, [chat.id]);
  useEffect(() => grow(area.current), [text]);

  const write = (value) => {
    setText(value);
    sessionStorage.setItem(DRAFT + chat.id, value);
  };
  const send = () => {
    if (!canSend) return;
    write("");
    setPictures([]);
    room.send(text.trim(), pictures.map(({ url }) => url));
  };
  const add = async (files) => {
    if (!files.length) return;
    if (!sees) return room.tell("This model does not see: it takes no pictures.", "warn");
    try {
      const more = await readPictures(files, pictures.length);
      setPictures((before) => [...before, ...more]);
    } catch (error) {
      room.tell(error.message, "bad");
    }
  };
  const onPaste = (event) => {
    const files = picturesOf(event);
    if (!files.length) return;
    event.preventDefault();
    add(files);
  };
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    add(picturesOf(event));
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form
    class="composer ${isOver ? "over" : ""}"
    onSubmit=${(event) => (event.preventDefault(), send())}
    onDragOver=${(event) => (event.preventDefault(), setOver(true))}
    onDragLeave=${() => setOver(false)}
    onDrop=${onDrop}
  >
    <${Attachments} pictures=${pictures} onRemove=${(at) => setPictures(pictures.filter((_, i) => i !== at))} />
    <div class="composer-row">
      ${sees &&
      html`<${IconButton} icon="picture" label="Add pictures" onClick=${() => file.current.click()} />
        <input
          ref=${file}
          type="file"
          accept="image/*"
          multiple
          hidden
          aria-label="Pictures"
          onChange=${(event) => add([...event.target.files]).then(() => (file.current.value = ""))}
        />`}
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
        ? html`<button type="button" class="primary round" aria-label="Stop" title="Stop (Esc)" onClick=${() => room.stop()}>
            <${Icon} name="stop" />
          </button>`
        : html`<button type="submit" class="primary round" aria-label="Send" title="Send (Enter)" disabled=${!canSend}>
            <${Icon} name="send" />
          </button>`}
    </div>
  </form>`;
}

/** As high as its text, up to a limit that the style sets. */
function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
