// A model's text in a view; see ../markdown.js.

import { html, useEffect, useLayoutEffect, useRef } from "../html.js";
import { renderMarkdown } from "../markdown.js";

const SHARE = 4; // at most 1/SHARE of the time is spent on rendering a growing text

export function Markdown({ text, isWriting = false }) {
  const element = useRef(null);
  const pace = useRef(null);
  useLayoutEffect(() => {
    pace.current ??= new Pace(element.current);
    pace.current.show(text, isWriting);
  }, [text, isWriting]);
  useEffect(() => () => pace.current?.stop(), []);
  return html`<div ref=${element} dir="auto"></div>`;
}

/** Renders a growing text, limited to a share of the time. */
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
