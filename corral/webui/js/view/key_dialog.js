// Asks for the server's key.

import { html } from "../html.js";
import { apiKey } from "../api.js";
import { useModal } from "./modal.js";

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
      <h2 id="key-title">This server requires a key</h2>
      <p id="key-about" class=${hadKey ? "error" : "soft"} role=${hadKey ? "alert" : undefined}>
        ${hadKey ? "This key is not valid." : "Ask the server's operator for one. It is stored only in this browser."}
      </p>
      <label>
        API key
        <input name="key" type="password" required autocomplete="off" aria-describedby="key-about" />
      </label>
      <p class="row end"><button class="primary">Use this key</button></p>
    </form>
  </dialog>`;
}
