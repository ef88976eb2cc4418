// Previews of code that a model has written, in a frame with an origin of its own that reaches nothing. Scripts run only
// when a person asks for it.

import { loadOwnStyle } from "../style.js";
import { t } from "../more_text.js";

const FRAMES = new URL("../../artifact/", import.meta.url);
const MERMAID = new URL("../../vendor/mermaid.js", import.meta.url);

/** Shows the preview of `text` in the element of a code block, or its code again. */
export async function togglePreview(element, language, text) {
  const old = element.querySelector(".preview");
  if (old) old.remove();
  else {
    await loadOwnStyle("preview");
    element.append(await previewOf(language, text));
  }
  element.classList.toggle("is-previewed", !old);
}

async function previewOf(language, text) {
  const whole = made("div", "preview");
  if (language === "mermaid") whole.append(frame("run", await diagram(text)));
  else {
    whole.append(frame("still", text));
    if (language === "html") whole.append(runBar(whole, text));
  }
  return whole;
}

function runBar(whole, text) {
  const bar = made("div", "preview-bar");
  const run = made("button", "", t("code.run"));
  run.type = "button";
  run.addEventListener("click", () => {
    whole.querySelector("iframe").replaceWith(frame("run", text));
    run.textContent = t("code.runAgain");
  });
  bar.append(run, made("span", "soft", t("code.isolated")));
  return bar;
}

/** `kind`: still or run. */
function frame(kind, html) {
  const element = made("iframe", "");
  element.title = t("code.preview");
  element.setAttribute("sandbox", "allow-scripts");
  element.referrerPolicy = "no-referrer";
  element.src = new URL(kind, FRAMES);
  element.addEventListener("load", () => element.contentWindow.postMessage(html, "*"), { once: true });
  return element;
}

/** Returns a document that draws a Mermaid diagram with the library inside of it, since the frame loads nothing. */
async function diagram(text) {
  const library = await (await fetch(MERMAID)).text();
  const settings = { startOnLoad: false, securityLevel: "strict", htmlLabels: false };
  return `<!doctype html><meta charset="utf-8"><style>body{margin:1rem;font-family:system-ui}pre{color:#b3261e}</style>
    <div id="place"></div><script>${inScript(library)}</script><script>
    mermaid.initialize(${json(settings)});
    mermaid.render("drawn", ${json(text)}).then(
      ({ svg }) => (document.getElementById("place").innerHTML = svg),
      (error) => document.body.replaceChildren(Object.assign(document.createElement("pre"), { textContent: error.message })),
    );
    </script>`;
}

/** Escapes text for a string in a script in HTML. */
function json(value) {
  return JSON.stringify(value).replace(/</g, "\\u003c").replace(/[\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16)}`);
}

function inScript(code) {
  return code.replace(/<(?=\/script|!--|script)/gi, "\\x3c");
}

function made(name, className, text = "") {
  return Object.assign(document.createElement(name), { className, textContent: text });
}
