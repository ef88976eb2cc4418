// Previews of code that a model has written, in a frame with an origin of its own that reaches nothing. Scripts run only
// when a person asks for it.

import { loadOwnStyle } from "../style.js";
import { t } from "../more_text.js";

const FRAMES = new URL("../../artifact/", import.meta.url);
const MOST = 0.7; // of the window's height
const OWN_COLOURS = /colou?r|background|fill|stroke|style=|<style/i;
const FILES = {
  html: ["preview.html", "text/html"],
  svg: ["drawing.svg", "image/svg+xml"],
  mermaid: ["diagram.mmd", "text/plain"],
};
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
  else whole.append(frame("still", styled(text)));
  whole.append(barOf(whole, language, text));
  return whole;
}

function barOf(whole, language, text) {
  const bar = made("div", "preview-bar");
  if (language === "html") {
    const run = button(t("code.run"), () => {
      whole.querySelector("iframe").replaceWith(frame("run", styled(text)));
      run.textContent = t("code.runAgain");
    });
    bar.append(run, made("span", "soft", t("code.isolated")));
  }
  bar.append(made("span", "space"), button(t("code.fullScreen"), () => whole.querySelector("iframe").requestFullscreen()));
  bar.append(button(t("code.download"), () => save(language, text)));
  return bar;
}

async function save(language, text) {
  const { download } = await import("../transfer.js");
  const [name, type] = FILES[language];
  download(name, text, type);
}

/** `kind`: still or run. */
function frame(kind, html) {
  const element = made("iframe", "");
  element.title = t("code.preview");
  element.setAttribute("sandbox", "allow-scripts");
  element.allowFullscreen = true;
  element.referrerPolicy = "no-referrer";
  element.src = new URL(kind, FRAMES);
  element.addEventListener("load", () => element.contentWindow.postMessage(html, "*"), { once: true });
  return element;
}

/** Gives a frame the height of its content, as far as the window has room. */
addEventListener("message", ({ source, data }) => {
  const frames = [...document.getElementsByTagName("iframe")];
  const element = data?.height > 0 && frames.find(({ contentWindow }) => contentWindow === source);
  if (element) element.style.height = `${Math.min(data.height, MOST * innerHeight)}px`;
});

/** Returns a document in the page's colours, unless it has colours of its own, which were chosen for white. */
function styled(html) {
  const style = OWN_COLOURS.test(html) ? "<style>:root{background:#fff;color-scheme:light}</style>" : pageStyle();
  return html.replace(/^(?:\s*<!doctype[^>]*>)?/i, (doctype) => doctype + style);
}

function pageStyle() {
  const { backgroundColor, color } = getComputedStyle(document.body);
  return `<style>:root{background:${backgroundColor};color:${color};fill:${color};color-scheme:${isDark() ? "dark" : "light"}}</style>`;
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Returns a document that draws a Mermaid diagram with the library inside of it, since the frame loads nothing. */
async function diagram(text) {
  const library = await (await fetch(MERMAID)).text();
  const settings = { startOnLoad: false, securityLevel: "strict", htmlLabels: false, theme: isDark() ? "dark" : "default" };
  return `<!doctype html><meta charset="utf-8">${pageStyle()}<style>body{margin:1rem;font-family:system-ui}pre{color:#b3261e}</style>
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

function button(text, onClick) {
  const element = made("button", "", text);
  element.type = "button";
  element.addEventListener("click", onClick);
  return element;
}

function made(name, className, text = "") {
  return Object.assign(document.createElement(name), { className, textContent: text });
}
