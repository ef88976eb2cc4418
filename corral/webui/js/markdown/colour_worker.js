// Worker: converts code to runs of text, each with a CSS class.

import highlighter from "../../vendor/highlight.mjs";

const CHARACTERS = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };

addEventListener("message", ({ data: { text, language } }) => {
  postMessage(highlighter.getLanguage(language) ? runsOf(text, language) : null);
});

postMessage("ready");

/** Converts the library's HTML to [[class, text]]. */
function runsOf(text, language) {
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  const runs = [];
  const open = [""];
  for (const piece of value.split(/(<span class="[^"]*">|<\/span>)/)) {
    if (piece.startsWith("<span")) open.push(piece.slice(13, -2));
    else if (piece === "</span>") open.pop();
    else if (piece) runs.push([open.at(-1), piece.replace(/&(?:amp|lt|gt|quot|#x27);/g, (name) => CHARACTERS[name])]);
  }
  return runs;
}
