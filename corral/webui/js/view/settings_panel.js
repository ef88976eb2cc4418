// The settings of a chat: system prompt, presets, and every field of the table with the server's default.

import { html, useEffect, useState } from "../html.js";
import { isOwnPreset, presets, savePreset } from "../preset.js";
import { FIELDS, checkForm, clamped, keepStart, keptStart, nChanges, startOfChats } from "../settings.js";
import { IconButton } from "./icon.js";
import { LanguageChoice } from "./language_choice.js";
import { t } from "../more_text.js";

const SLIDERS = { temperature: 2, top_p: 1, min_p: 1 }; // their right ends; the number beside may be larger
const GROUPS = [...new Set(FIELDS.map(({ group }) => group))];

export function SettingsPanel({ app, state, onClose }) {
  const { chat, defaults, fieldErrors } = state;
  const isUsed = (group) =>
    group === "main" || FIELDS.some((field) => field.group === group && (field.name in chat.settings || fieldErrors[field.name]));
  const [opened, setOpened] = useState(() => new Set(GROUPS.filter(isUsed))); // a group stays open when its last field is reset
  const toggle = (group) => ({ currentTarget }) =>
    currentTarget.open === opened.has(group) || setOpened((now) => new Set(currentTarget.open ? [...now, group] : [...now].filter((each) => each !== group)));
  useEffect(() => setOpened((now) => new Set([...now, ...GROUPS.filter(isUsed)])), [chat.id, chat.settings, fieldErrors]);
  return html`<aside class="settings" aria-label=${t("settings.ofChat")}>
    <div class="settings-head">
      <h2>${t("app.settings")}</h2>
      <${IconButton} icon="close" label=${t("settings.close")} onClick=${onClose} />
    </div>
    <div class="field">
      <div class="field-head">
        <label for="system-prompt">${t("settings.system")}</label>
        <span>
          <${IconButton} icon="book" label=${t("settings.choosePrompt")} onClick=${() => app.openPanel("prompts", { isSystem: true })} />
          <${IconButton}
            icon="plus"
            label=${t("settings.keepPrompt")}
            disabled=${!chat.system.trim()}
            onClick=${() => app.openPanel("prompts", { isSystem: true, text: chat.system })}
          />
        </span>
      </div>
      <textarea
        id="system-prompt"
        rows="3"
        dir="auto"
        placeholder=${t("settings.instructions")}
        value=${chat.system}
        onInput=${(event) => app.setSystem(event.target.value)}
      ></textarea>
    </div>
    <${Start} app=${app} chat=${chat} props=${state.props} />
    <${Presets} app=${app} settings=${chat.settings} />
    ${GROUPS.map(
      (group) => html`<details key=${group} open=${opened.has(group)} onToggle=${toggle(group)}>
        <summary>${t(`group.${group}`)}</summary>
        ${FIELDS.filter((field) => field.group === group).map(
          (field) => html`<${Field}
            key=${field.name}
            field=${field}
            value=${chat.settings[field.name]}
            standard=${defaults[field.name]}
            error=${fieldErrors[field.name]}
            app=${app}
          />`,
        )}
      </details>`,
    )}
    <details open>
      <summary>${t("settings.page")}</summary>
      <${LanguageChoice} />
    </details>
  </aside>`;
}

/** How many settings are this chat's own, and what new chats begin with. */
function Start({ app, chat, props }) {
  const [, redraw] = useState(0);
  const n = nChanges(chat);
  const start = startOfChats(props);
  const isStart = start.system === chat.system && same(start.settings, chat.settings);
  const keep = (wanted) => {
    keepStart(wanted);
    redraw((each) => each + 1);
  };
  const reset = () => {
    app.setSystem("");
    app.useSettings({});
  };
  return html`<div class="start">
    <p class="soft" role="status">${n ? t("settings.changes", { n }) : t("settings.noChanges")} ${isStart && keptStart() && t("settings.areStart")}</p>
    <div class="row">
      <button type="button" disabled=${isStart} onClick=${() => keep(chat)}>${t("settings.keepStart")}</button>
      <button type="button" class="plain" disabled=${!n} onClick=${reset}>${t("settings.resetAll")}</button>
      ${keptStart() && html`<button type="button" class="plain" onClick=${() => keep(null)}>${t("settings.forgetStart")}</button>`}
    </div>
  </div>`;
}

function Presets({ app, settings }) {
  const [all, setAll] = useState(presets);
  const name = Object.keys(all).find((each) => same(all[each], settings)) ?? "";
  const keep = () => {
    const wanted = prompt(t("settings.presetName"))?.trim();
    if (!wanted) return;
    savePreset(wanted, settings);
    setAll(presets());
  };
  const forget = () => {
    savePreset(name, null);
    setAll(presets());
  };
  return html`<div class="field presets">
    <div class="preset">
      <label for="preset">${t("settings.preset")}</label>
      <select id="preset" value=${name} onChange=${(event) => event.target.value && app.useSettings(all[event.target.value])}>
        ${!name && html`<option value="">${t("settings.custom")}</option>`}
        ${Object.keys(all).map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
      </select>
    </div>
    <${IconButton} icon="plus" label=${t("settings.savePreset")} onClick=${keep} />
    <${IconButton} icon="trash" label=${t("settings.deletePreset")} disabled=${!isOwnPreset(name)} onClick=${forget} />
  </div>`;
}

function Field({ field, value, standard, error, app }) {
  const { name } = field;
  const label = t(`field.${name}`);
  const isSet = value !== undefined;
  const id = `setting-${name}`;
  return html`<div class="field ${isSet ? "set" : ""}">
    <div class="field-head">
      <label for=${id}>${label}</label>
      ${isSet &&
      html`<${IconButton} icon="again" label=${t("settings.reset", { label })} onClick=${() => app.setSetting(name, undefined)} />`}
    </div>
    <${Control} id=${id} field=${field} value=${isSet ? value : standard} app=${app} hasError=${Boolean(error)} />
    <p class="about soft" id="${id}-about">${t(`field.${name}.about`)}</p>
    ${error && html`<p class="error" id="${id}-error" role="alert">${error}</p>`}
  </div>`;
}

function Control({ id, field, value, app, hasError }) {
  const { name, kind, min, max, step } = field;
  const more = { id, "aria-describedby": hasError ? `${id}-about ${id}-error` : `${id}-about`, "aria-invalid": hasError };
  const set = (changed) => app.setSetting(name, changed);
  const [typed, setTyped] = useState(null); // until the field is left: the page may be drawn again meanwhile
  const typing = { onInput: (event) => setTyped(event.target.value), onBlur: () => setTyped(null) };
  if (kind === "flag") {
    return html`<input type="checkbox" ...${more} checked=${Boolean(value)} onChange=${(event) => set(event.target.checked)} />`;
  }
  if (kind === "list") {
    const lines = (value || []).map(escaped).join("\n");
    const onChange = (event) => set(event.target.value.split("\n").filter(Boolean).map(unescaped));
    return html`<textarea rows="2" ...${more} ...${typing} value=${typed ?? lines} onChange=${onChange}></textarea>`;
  }
  if (kind === "text") {
    return html`<input ...${more} ...${typing} value=${typed ?? value} onChange=${(event) => set(event.target.value.trim() || undefined)} />`;
  }
  if (kind === "json" || kind === "code") {
    const onBlur = async (event) => app.setFieldError(name, await checkForm(name, event.target.value));
    return html`<textarea
      rows="4"
      class="code"
      spellcheck=${false}
      ...${more}
      value=${value}
      onInput=${(event) => set(event.target.value || undefined)}
      onBlur=${onBlur}
    ></textarea>`;
  }
  const onChange = ({ target }) => set(Number.isNaN(target.valueAsNumber) ? undefined : clamped(field, target.valueAsNumber));
  const limits = { min, step: kind === "integer" ? 1 : (step ?? "any") };
  const input = html`<input
    type="number"
    ...${more}
    ...${limits}
    max=${max}
    ...${typing}
    value=${typed ?? rounded(value)}
    onChange=${onChange}
  />`;
  if (!(name in SLIDERS)) return input;
  return html`<div class="slider">
    <input
      type="range"
      aria-label=${t("settings.slider", { label: t(`field.${name}`) })}
      ...${limits}
      max=${SLIDERS[name]}
      value=${value || 0}
      onInput=${({ target }) => set(target.valueAsNumber)}
    />
    ${input}
  </div>`;
}

/** Rounds 32-bit floats of the server. */
function rounded(value) {
  return typeof value === "number" ? Number(value.toPrecision(6)) : value;
}

/** Escapes line breaks in a list of lines. */
function escaped(text) {
  return text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
}

function unescaped(line) {
  return line.replace(/\\(n|\\)/g, (_, letter) => (letter === "n" ? "\n" : "\\"));
}

function same(a, b) {
  const names = Object.keys({ ...a, ...b });
  return names.every((name) => JSON.stringify(a[name]) === JSON.stringify(b[name]));
}
