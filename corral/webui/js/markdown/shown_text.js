// The text of a message as it is shown, for searches: without the marks of Markdown, formulas, and the words of the page.

import { isTooLong } from "../markdown.js";
import { pretty } from "../view/pretty.js";
import { Blocks } from "./block.js";
import { writeHtml } from "./syntax.js";

const OTHER = ".formula, .code-head, button";

const texts = new WeakMap(); // by message: a changed one is another

export function shownText(message) {
  if (!texts.has(message)) texts.set(message, textOf(message));
  return texts.get(message);
}

/** Returns the nodes with the text of a message that is drawn. */
export function textNodes(body) {
  const accept = (node) => {
    if (node instanceof Text) return NodeFilter.FILTER_ACCEPT;
    return node.matches(OTHER) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP;
  };
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT, accept);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  return nodes;
}

function textOf({ role, content, state }) {
  if (role === "tool") return pretty(content);
  if (role !== "assistant" || state === "writing" || isTooLong(content)) return content;
  try {
    const html = new Blocks().read(content.replace(/\r\n?/g, "\n")).map(writeHtml).join("");
    return dataOf(textNodes(new DOMParser().parseFromString(html, "text/html").body));
  } catch {
    return content; // the parser failed: it is shown so, too
  }
}

export function dataOf(nodes) {
  return nodes.map(({ data }) => data).join("");
}
