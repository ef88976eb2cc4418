// A block of code: its language, a copy button, and syntax colours once they are computed.

import { copyText } from "../clipboard.js";
import { runsOf } from "./colour.js";
import { t } from "../text.js";

const MAX_COLOURED = 50_000; // characters
const SHOWN_MS = 1_500;
const DRAWN = "mermaid";
const PREVIEWED = ["html", "svg", DRAWN];

/** A block of code that may grow. */
export class CodeBlock {
  #code = element("code");
  #copy = element("button", "plain code-copy", t("common.copy"));
  #text = "";
  #colouring = null;
  #preview = null;
  #isDrawn = false;

  constructor(language) {
    this.language = language;
    this.#copy.type = "button";
    this.#copy.setAttribute("aria-label", t("code.copy"));
    this.#copy.addEventListener("click", () => this.#copyCode());
    const head = element("div", "code-head");
    head.append(element("span", "code-language", language || t("code.text")));
    if (PREVIEWED.includes(language)) head.append(this.#previewButton());
    head.append(this.#copy);
    const lines = element("pre");
    lines.tabIndex = 0; // so that it can be scrolled with keys
    lines.append(this.#code);
    this.element = element("div", "code");
    for (const each of [head, lines]) each.dir = "ltr"; // whatever the language around them
    this.element.append(head, lines);
  }

  /** Resolves when it is completely rendered. `isWhole`: its end was written. */
  async show(text, isWhole = true) {
    const hasColours = this.language !== "" && text.length <= MAX_COLOURED;
    if (hasColours && text.startsWith(this.#text)) this.#code.append(text.slice(this.#text.length));
    else this.#code.textContent = text;
    this.#text = text;
    if (isWhole && this.language === DRAWN) this.#drawWhenSeen();
    if (hasColours) await (this.#colouring ??= this.#colour());
  }

  /** Repeats until no more code has arrived meanwhile. */
  async #colour() {
    let text;
    do {
      text = this.#text;
      const runs = await runsOf(text, this.language);
      if (runs && this.#text.startsWith(text) && this.#text.length <= MAX_COLOURED) {
        this.#code.replaceChildren(...runs.map(coloured), this.#text.slice(text.length));
      }
    } while (text !== this.#text);
    this.#colouring = null;
  }

  /** Draws a diagram once; somebody who looks at its code goes on seeing that. */
  #drawWhenSeen() {
    if (this.#isDrawn) return;
    this.#isDrawn = true;
    const observer = new IntersectionObserver(([{ isIntersecting }]) => {
      if (!isIntersecting) return;
      observer.disconnect();
      this.#preview.click();
    });
    observer.observe(this.element);
  }

  #previewButton() {
    const button = (this.#preview = element("button", "plain code-copy code-preview", t("code.preview")));
    button.type = "button";
    button.addEventListener("click", async () => {
      button.disabled = true;
      const preview = import("./preview.js").then((m) => m.togglePreview(this.element, this.language, this.#text));
      await preview.catch(() => {}); // the server cannot be reached: the code remains
      button.disabled = false;
      button.textContent = this.element.classList.contains("is-previewed") ? t("code.code") : t("code.preview");
    });
    return button;
  }

  async #copyCode() {
    await copyText(this.#text);
    this.#copy.textContent = t("common.copied");
    setTimeout(() => (this.#copy.textContent = t("common.copy")), SHOWN_MS);
  }
}

function coloured([className, text]) {
  return className ? element("span", className, text) : text;
}

function element(name, className = "", text = "") {
  return Object.assign(document.createElement(name), { className, textContent: text });
}
