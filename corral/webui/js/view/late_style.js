// Style sheets of views that are loaded on demand.

/** Adds a style sheet of the page's own directory, once. */
export function addStyle(name) {
  const href = new URL(`../../css/${name}`, import.meta.url).href;
  if (document.querySelector(`link[href="${href}"]`)) return;
  document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
}
