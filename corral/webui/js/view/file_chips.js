// The files of an unsent message: their tokens, and what to do with those that are too long.

import { html, useEffect, useRef, useState } from "../html.js";
import { countTokens, cutText, roomFor, summarize } from "../files/length.js";
import { Icon, IconButton } from "./icon.js";
import { loadOwnStyle } from "../style.js";
import { t } from "../more_text.js";

const STATES = { cut: t("file.cut"), summarized: t("file.summarized") };

await loadOwnStyle("files");

/** `parts`: { images, files, audio } of the message; `onChange` gets a function from parts to parts. */
export function FileChips({ parts, onChange, props }) {
  const { files, audio } = parts;
  const nCtx = props?.default_generation_settings?.n_ctx ?? 0;
  const room = roomFor(nCtx);
  const nAll = files.reduce((sum, { nTokens = 0 }) => sum + nTokens, 0);
  const change = (file, fields) =>
    onChange((now) => ({ ...now, files: now.files.map((each) => (each === file ? { ...file, ...fields } : each)) }));
  const remove = (kind, item) => onChange((now) => ({ ...now, [kind]: now[kind].filter((each) => each !== item) }));
  return html`<ul class="file-chips" aria-label=${t("composer.filesOf")}>
    ${files.map(
      (file, i) => html`<${FileChip}
        key=${i}
        file=${file}
        nCtx=${nCtx}
        room=${Math.max(Math.floor(room / files.length), room - (nAll - (file.nTokens ?? 0)))}
        isLong=${nAll > room}
        sees=${Boolean(props?.modalities?.vision)}
        nImages=${parts.images.length}
        onFile=${change}
        onImages=${(drawn, more) =>
          onChange((now) => ({ ...now, images: [...now.images, ...more], files: now.files.filter((each) => each !== drawn) }))}
        onRemove=${() => remove("files", file)}
      />`,
    )}
    ${audio.map(
      (item, i) => html`<li key=${`a${i}`} class="file-chip">
        <${Icon} name="mic" /> <span class="file-name">${item.name}</span>
        <audio controls src=${item.url}></audio>
        <${IconButton} icon="close" label=${t("common.removeNamed", { name: item.name })} onClick=${() => remove("audio", item)} />
      </li>`,
    )}
  </ul>`;
}

function FileChip({ file, nCtx, room, isLong, sees, nImages, onFile, onImages, onRemove }) {
  const [work, setWork] = useState(""); // what is being done
  const [error, setError] = useState("");
  const controller = useRef(null);
  const current = useRef(file); // tokens are counted while something else is done
  current.current = file;
  useEffect(() => {
    if (file.nTokens !== undefined) return;
    countTokens(file.text).then(
      (nTokens) => current.current.text === file.text && onFile(current.current, { nTokens }),
      ({ message }) => setError(message),
    );
  }, [file]);
  useEffect(() => () => controller.current?.abort(), []);
  const run = async (label, action) => {
    controller.current = new AbortController();
    setWork(label);
    setError("");
    try {
      await action(controller.current.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") setError(problem.message);
    }
    setWork("");
  };
  const cut = () =>
    run(t("file.cutting"), async () => {
      const text = await cutText(file.text, file.nTokens, room);
      const nTokens = await countTokens(text);
      onFile(current.current, { text, nTokens, state: "cut", source: undefined });
    });
  const shorten = () =>
    run(t("file.summarizing"), async (signal) => {
      const onProgress = (part, all) => setWork(t("file.summarizingPart", { part, all }));
      const text = await summarize(file.name, file.text, file.nTokens, room, nCtx, { signal, onProgress });
      const nTokens = await countTokens(text);
      onFile(current.current, { text, nTokens, state: "summarized", source: undefined });
    });
  const draw = () =>
    run(t("file.drawing"), async () => {
      const { drawPages } = await import("../files/pdf.js");
      const images = await drawPages(file.source, file.name, nImages);
      onImages(current.current, images);
    });
  const isOver = isLong && file.nTokens > room;
  return html`<li class="file-chip ${isOver ? "long" : ""}">
    <${Icon} name="file" />
    <span class="file-name" title=${file.name}>${file.name}</span>
    <span class="soft">${details(file)}</span>
    ${work
      ? html`<span class="soft" role="status">${work}</span>
          <button type="button" onClick=${() => controller.current.abort()}>${t("common.stop")}</button>`
      : html`${isOver &&
          html`<span class="file-offer">
            <span>${t("file.tooLong", { n: room })}</span>
            <button type="button" onClick=${cut}>${t("file.cutToFit")}</button>
            <button type="button" onClick=${shorten}>${t("file.summarize")}</button>
          </span>`}
          ${sees && file.source && html`<button type="button" onClick=${draw}>${t("file.asImages")}</button>`}`}
    ${error && html`<span class="error" role="alert">${error}</span>`}
    <${IconButton} icon="close" label=${t("common.removeNamed", { name: file.name })} onClick=${onRemove} />
  </li>`;
}

/** The files of a message that was sent: their texts can be opened. */
export function SentFiles({ files = [], audio = [] }) {
  return html`<div class="sent-files">
    ${files.map(
      (file, i) => html`<details key=${i} class="sent-file">
        <summary><${Icon} name="file" /> <span class="file-name">${file.name}</span> <span class="soft">${details(file)}</span></summary>
        <pre>${file.text}</pre>
      </details>`,
    )}
    ${audio.map((item, i) => html`<audio key=${i} controls src=${item.url} aria-label=${item.name} title=${item.name}></audio>`)}
  </div>`;
}

function details({ nPages, nTokens, text, state }) {
  const size = nTokens === undefined ? t("count.characters", { n: text.length }) : t("count.tokens", { n: nTokens });
  const pages = nPages && t("count.pages", { n: nPages });
  return [pages, size, STATES[state] ?? state].filter(Boolean).join(" · ");
}
