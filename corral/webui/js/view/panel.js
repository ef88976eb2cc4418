// What opens over the page: loaded from ../panel when it is first needed.

import { html, useEffect, useState } from "../html.js";
import { load } from "./lazy.js";
import { t } from "../text.js";

/** `onOpen` opens what belongs to the page: list, settings or keys. */
export function Panel({ app, state, onOpen }) {
  const { panel } = state;
  const [loaded, setLoaded] = useState(null);
  useEffect(() => {
    if (!panel) return;
    Promise.all([load(`../panel/${panel.name}.js`), load("../style.js").then((style) => style.loadOwnStyle("panel"))]).then(
      ([view]) => setLoaded({ name: panel.name, view }),
      () => (app.closePanel(panel), app.tell(t("common.unreachable"), "bad")),
    );
  }, [panel?.name]);
  if (!panel || loaded?.name !== panel.name) return null;
  return html`<${loaded.view.Panel} app=${app} state=${state} ...${panel} onOpen=${onOpen} onClose=${() => app.closePanel(panel)} />`;
}
