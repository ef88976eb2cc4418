// Asks for the server's key.

import { html } from "../html.js";
import { apiKey } from "../api.js";
import { useModal } from "./modal.js";
import { t } from "../text.js";

export function KeyDialog({ onKey }) {
  const dialog = useModal();
  const hadKey = apiKey() !== "";
  const onSubmit = (event) => {
    event.preventDefault();
    onKey(new FormData(event.target).get("key").trim());
  };
  const onClose = () => dialog.current?.showModal(); // browsers may close it on a second Escape
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onCancel=${(event) => event.preventDefault()} onClose=${onClose}>
    <form onSubmit=${onSubmit}>
      <h2 id="key-title">${t("key.title")}</h2>
      <p id="key-about" class=${hadKey ? "error" : "soft"} role=${hadKey ? "alert" : undefined}>
        ${hadKey ? t("key.invalid") : t("key.about")}
      </p>
      <label>
        ${t("key.label")}
        <input name="key" type="password" required autocomplete="off" aria-describedby="key-about" />
      </label>
      <p class="row end"><button class="primary">${t("key.use")}</button></p>
    </form>
  </dialog>`;
}
