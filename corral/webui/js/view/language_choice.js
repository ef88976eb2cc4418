// A choice of the page's language.

import { html } from "../html.js";
import { LANGUAGES, chooseLanguage, chosenLanguage, t } from "../more_text.js";

export function LanguageChoice() {
  return html`<div class="field">
    <label for="language">${t("settings.language")}</label>
    <select id="language" value=${chosenLanguage()} onChange=${({ target }) => chooseLanguage(target.value)}>
      <option value="">${t("settings.languageOfBrowser")}</option>
      ${Object.entries(LANGUAGES).map(([tag, name]) => html`<option key=${tag} value=${tag} lang=${tag}>${name}</option>`)}
    </select>
  </div>`;
}
