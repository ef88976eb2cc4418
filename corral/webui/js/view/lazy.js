// Views that are loaded when they are first needed.

import { html, useEffect, useState } from "../html.js";

const loaded = new Map(); // views by the path of their module and their name

/** Renders a view of another module; nothing until it is loaded. `from`: its path relative to this file. */
export function Lazy({ from, view, ...props }) {
  const key = `${from} ${view}`;
  const [, setKey] = useState("");
  useEffect(() => {
    if (!loaded.has(key)) import(from).then((module) => (loaded.set(key, module[view]), setKey(key)));
  }, [key]);
  const View = loaded.get(key);
  return View ? html`<${View} ...${props} />` : null;
}
