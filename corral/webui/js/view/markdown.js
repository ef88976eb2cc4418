// A model's text in a view; see ../markdown.js.

import { html, useEffect, useLayoutEffect, useRef } from "../html.js";
import { renderMarkdown } from "../markdown.js";

const SHARE = 4; // of the time while a text is written, one part of so many is spent on showing it

export function Markdown({ text, isWriting = false }) {
  const element = useRef(null);
  const pace = useRef(null);
  useLayoutEffect(() => {
    pace.current ??= new Pace(element.current);
    pace.current.show(text, isWriting);
  }, [text, isWriting]);
  useEffect(() => () => pace.current?.stop(), []);
  return html`<div ref=${element}></div>`;
}

/** Mutable: shows a text that grows no more often than the page can bear. */
class Pace {
  #element;
  #next = null;
  #timer = 0;
  #freeAt = 0;

  constructor(element) {
    this.#element = element;
  }

  show(text, isWriting) {
    this.#next = { text, isWriting };
    const wait = this.#freeAt - performance.now();
    if (!isWriting || wait <= 0) this.#showNow();
    else this.#timer ||= setTimeout(() => this.#showNow(), wait);
  }

  stop() {
    clearTimeout(this.#timer);
  }

  #showNow() {
    this.stop();
    this.#timer = 0;
    const begin = performance.now();
    renderMarkdown(this.#next.text, this.#element, this.#next);
    const end = performance.now();
    this.#freeAt = end + (SHARE - 1) * (end - begin);
  }
}
