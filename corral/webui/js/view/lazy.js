// Views that are loaded when they are first needed.

import { html, useEffect, useState } from "../html.js";
import { t } from "../text.js";

const loaded = new Map(); // views by the path of their module and their name
let nFailed = 0;

/** Loads a module; its path is relative to this file. Browsers keep a failed one under its address: the next try has another. */
export function load(from) {
  return import(nFailed ? `${from}?${nFailed}` : from).catch(() => {
    nFailed += 1;
    throw new Error(t("common.unreachable"));
  });
}

/** Renders a view of another module; nothing until it is loaded. If it cannot be, it says so and can be asked for again. */
export function Lazy({ from, view, ...props }) {
  const key = `${from} ${view}`;
  const [state, setState] = useState("");
  const begin = () => {
    setState("");
    load(from).then(
      (module) => (loaded.set(key, module[view]), setState(key)),
      () => setState("failed"),
    );
  };
  useEffect(() => {
    if (!loaded.has(key)) begin();
    else setState(key); // another one may have loaded it since this one was drawn
  }, [key]);
  const View = loaded.get(key);
  if (View) return html`<${View} ...${props} />`;
  if (state !== "failed") return null;
  return html`<p class="banner bad" role="alert">
    ${t("common.unreachable")} <button type="button" onClick=${begin}>${t("remedy.again")}</button>
  </p>`;
}
