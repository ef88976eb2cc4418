// A choice of the model, where the server has several, and a dialog with all of them.

import { html, useState } from "../html.js";
import { TextButton } from "./icon.js";
import { modelText } from "./model_text.js";
import { isForChat, isUp } from "../many_models.js";
import { ModelList } from "./model_list.js";
import { t } from "../more_text.js";

export function ModelChoice({ app, state }) {
  const { models, props } = state;
  const [opened, setOpened] = useState(""); // list or compare
  const [comparison, setComparison] = useState(null);
  const compare = async () => {
    setComparison(await import("./comparison.js"));
    setOpened("compare");
  };
  const close = (name) => () => setOpened((now) => (now === name ? "" : now));
  const usable = models.filter(isForChat);
  const groups = [
    [t("models.inMemory"), usable.filter(({ status }) => isUp(status))],
    [t("models.available"), usable.filter(({ status }) => !isUp(status))],
    [t("models.notForChat"), models.filter((row) => !usable.includes(row)), true],
  ];
  return html`<select
      class="model"
      aria-label=${t("models.model")}
      onFocus=${() => app.many.refresh()}
      onChange=${(event) => app.many.use(event.target.value)}
    >
      ${groups.map(
        ([label, rows, isDisabled]) =>
          rows.length > 0 &&
          html`<optgroup key=${label} label=${label} disabled=${isDisabled}>
            ${rows.map(
              (row) => html`<option key=${row.id} value=${row.id} selected=${row.id === props?.model_alias}>${modelText(row)}</option>`,
            )}
          </optgroup>`,
      )}
    </select>
    <${TextButton} icon="columns" label=${t("models.title")} onClick=${() => setOpened("list")} />
    ${opened === "list" && html`<${ModelList} app=${app} models=${models} onCompare=${compare} onClose=${close("list")} />`}
    ${opened === "compare" && html`<${comparison.Comparison} app=${app} state=${state} onClose=${close("compare")} />`}`;
}
