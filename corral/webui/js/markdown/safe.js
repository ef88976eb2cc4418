// Sanitizes HTML from text of a model with an allow-list.

import DOMPurify from "../../vendor/dompurify.mjs";

const BLOCKS = "section p hr h1 h2 h3 h4 h5 h6 blockquote ul ol li pre table thead tbody tr th td";
const IN_TEXT = "br code em strong del a img span";
const N_AT_ONCE = 200;
const VALUES = {
  class: /^(?:language-[\w+#.-]{0,30}|formula|task)$/,
  src: /^data:image\/(?:png|jpeg|gif|webp|avif);base64,[a-z0-9+/]+=*$/i, // nothing is loaded from other hosts
};

const message = DOMPurify(window);
message.setConfig({
  ALLOWED_TAGS: `${BLOCKS} ${IN_TEXT}`.split(" "),
  ALLOWED_ATTR: ["href", "title", "src", "alt", "align", "start", "class"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ADD_URI_SAFE_ATTR: ["align", "start"], // not URLs
  RETURN_DOM_FRAGMENT: true,
});
message.addHook("uponSanitizeAttribute", (_, attribute) => {
  if (VALUES[attribute.attrName]?.test(attribute.attrValue) === false) attribute.keepAttr = false;
});
message.addHook("afterSanitizeAttributes", (node) => {
  if (node.localName !== "a") return;
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("target", "_blank");
});

/** Sanitizes pieces of a message's HTML, many in one pass, since each pass has a cost. */
export function safeFragments(pieces) {
  const fragments = [];
  for (let i = 0; i < pieces.length; i += N_AT_ONCE) {
    for (const fragment of pass(pieces.slice(i, i + N_AT_ONCE))) fragments.push(fragment);
  }
  return fragments;
}

function pass(pieces) {
  const sections = [...message.sanitize(pieces.map((html) => `<section>${html}</section>`).join("")).children];
  if (sections.length !== pieces.length) throw new Error("a piece became more than one");
  return sections.map((section) => {
    const fragment = new DocumentFragment();
    fragment.append(...section.childNodes);
    return fragment;
  });
}
