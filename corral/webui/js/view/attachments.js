// The images of an unsent message.

import { html } from "../html.js";
import { Icon } from "./icon.js";
import { number, t } from "../more_text.js";

/** `images`: from readImages; `onRemove` gets the index. */
export function Attachments({ images, onRemove }) {
  if (images.length === 0) return null;
  return html`<ul class="attachments" aria-label=${t("composer.images")}>
    ${images.map(
      ({ name, url, bytes }, i) => html`<li key=${i} class="attachment">
        <img src=${url} alt=${name} title="${name}, ${size(bytes)}" />
        <button type="button" aria-label=${t("common.removeNamed", { name })} title=${t("common.remove")} onClick=${() => onRemove(i)}>
          <${Icon} name="close" />
        </button>
      </li>`,
    )}
  </ul>`;
}

function size(bytes) {
  return bytes < 1e6 ? `${number(Math.max(1, bytes / 1e3))} KB` : `${number(bytes / 1e6, 1)} MB`;
}
