// The images of an unsent message.

import { html } from "../html.js";
import { Icon } from "./icon.js";

/** `images`: from readImages; `onRemove` gets the index. */
export function Attachments({ images, onRemove }) {
  if (images.length === 0) return null;
  return html`<ul class="attachments" aria-label="Images of this message">
    ${images.map(
      ({ name, url, bytes }, i) => html`<li key=${i} class="attachment">
        <img src=${url} alt=${name} title="${name}, ${size(bytes)}" />
        <button type="button" aria-label="Remove ${name}" title="Remove" onClick=${() => onRemove(i)}>
          <${Icon} name="close" />
        </button>
      </li>`,
    )}
  </ul>`;
}

function size(bytes) {
  return bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
