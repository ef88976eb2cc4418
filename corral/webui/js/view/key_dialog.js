// Asks for the server's key.

import { html, useEffect, useRef } from "../html.js";
import { apiKey } from "../api.js";

export function KeyDialog({ onKey }) {
  const dialog = useRef(null);
  const hadKey = apiKey() !== "";
  useEffect(() => dialog.current.showModal(), []);
  const onSubmit = (event) => {
    event.preventDefault();
    onKey(new FormData(event.target).get("key").trim());
  };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onCancel=${(event) => event.preventDefault()}>
    <form onSubmit=${onSubmit}>
      <h2 id="key-title">This server wants a key</h2>
      <p id="key-about" class=${hadKey ? "error" : "soft"} role=${hadKey ? "alert" : undefined}>
        ${hadKey ? "The key is not right." : "Whoever runs it has one for you. It is kept in this browser only."}
      </p>
      <label>
        API key
        <input name="key" type="password" required autocomplete="off" aria-describedby="key-about" />
      </label>
      <p class="row end"><button class="primary">Use it</button></p>
    </form>
  </dialog>`;
}
