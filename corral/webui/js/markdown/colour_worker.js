// In a thread of its own: code to runs of text, each with the class that says what it is.

import highlighter from "../../vendor/highlight.mjs";

const CHARACTERS = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };

addEventListener("message", ({ data: { text, language } }) => {
  postMessage(highlighter.getLanguage(language) ? runsOf(text, language) : null);
});

postMessage("ready");

/** [[class, text]] of what the library writes as HTML. */
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
