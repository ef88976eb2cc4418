// Writes a conversation as one HTML file: its styles and images are inside, and nothing in it runs or loads. All of it is
// built as DOM nodes, so that texts are escaped by the browser.

import { renderMarkdown } from "./markdown.js";
import { download, fileName } from "./transfer.js";
import { pathOf, titleOf } from "./tree.js";
import { language, t } from "./text.js";

const NAMES = { user: t("author.user"), assistant: t("author.assistant"), tool: t("author.tool") };
const STYLES = ["base", "markdown", "share"].map((name) => new URL(`../css/${name}.css`, import.meta.url));
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";
const STYLE = "style";
const IMAGE = /^data:image\/(?:png|jpeg|gif|webp|avif);base64,[a-z0-9+/]+=*$/i;

/** Lets the browser save the branch that is shown. */
export async function shareChat(chat) {
  download(`${fileName(titleOf(chat))}.html`, await sharedHtml(chat), "text/html");
}

/** Returns the text of the file. */
export async function sharedHtml(chat) {
  const styles = await Promise.all(STYLES.map(async (url) => (await fetch(url)).text()));
  const page = document.implementation.createHTMLDocument(titleOf(chat));
  page.documentElement.lang = language;
  page.head.prepend(
    node(page, "meta", { charset: "utf-8" }),
    node(page, "meta", { "http-equiv": "Content-Security-Policy", content: POLICY }),
    node(page, "meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    page.createComment(STYLE),
  );
  const main = node(page, "main");
  main.append(node(page, "h1", {}, titleOf(chat)));
  for (const message of pathOf(chat)) main.append(await article(page, message));
  page.body.append(main);
  const html = page.documentElement.outerHTML;
  const style = `<style>${styles.join("\n")}</style>`; // as text: this page may not have inline styles
  return `<!doctype html>\n${html.replace(`<!--${STYLE}-->`, () => style)}\n`;
}

async function article(page, { role, content, reasoning, images = [], toolCalls = [] }) {
  const whole = node(page, "article", { class: role });
  whole.append(node(page, "h2", {}, NAMES[role] ?? ""));
  for (const src of images) if (IMAGE.test(src)) whole.append(node(page, "img", { src, alt: t("thread.image") }));
  if (reasoning) whole.append(folded(page, t("message.reasoning"), reasoning));
  if (role === "assistant") whole.append(page.adoptNode(await rendered(content)));
  else whole.append(node(page, role === "tool" ? "pre" : "div", { class: "said", dir: "auto" }, content));
  for (const call of toolCalls) whole.append(node(page, "pre", {}, `${call.name}(${call.arguments})`));
  return whole;
}

function folded(page, title, text) {
  const details = node(page, "details");
  details.append(node(page, "summary", {}, title), node(page, "div", { class: "said", dir: "auto" }, text));
  return details;
}

/** Returns Markdown without buttons, and formulas as MathML, which needs neither fonts nor styles. */
async function rendered(text) {
  const element = document.createElement("div");
  await renderMarkdown(text, element);
  element.dir = "auto";
  for (const each of element.querySelectorAll("button, .katex-html")) each.remove();
  for (const each of element.querySelectorAll("[tabindex]")) each.removeAttribute("tabindex");
  return element;
}

function node(page, name, attributes = {}, text = "") {
  const element = page.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}
