// Style sheets that are loaded with what needs them.

import { t } from "./text.js";

const loading = new Map();

/** Loads a style sheet of the page's own folder. */
export function loadOwnStyle(name) {
  return loadStyle(new URL(`../css/${name}.css`, import.meta.url));
}

/** Resolves when the style sheet is loaded; rejects if it cannot be. */
export function loadStyle(url) {
  if (!loading.has(url.href)) loading.set(url.href, begin(url));
  return loading.get(url.href);
}

function begin(url) {
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: url.href });
  return new Promise((resolve, reject) => {
    link.addEventListener("load", resolve);
    link.addEventListener("error", () => {
      link.remove();
      loading.delete(url.href);
      reject(new Error(t("app.noStyle")));
    });
    document.head.append(link);
  });
}
