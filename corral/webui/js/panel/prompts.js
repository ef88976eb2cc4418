// The prompt library: use, write and remove prompts; variables are asked for.

import { html, useRef, useState } from "../html.js";
import { filledIn, promptsOf, removePrompt, savePrompt, variablesOf } from "../prompts.js";
import { IconButton } from "../view/icon.js";
import { useModal } from "../view/modal.js";
import { parts, t } from "../more_text.js";

/** `useId`: a prompt to use at once; `isSystem`: only system prompts; `text`: of a new prompt to begin with. */
export function Panel({ app, state, useId, isSystem, text, onClose }) {
  const dialog = useModal();
  const [all, setAll] = useState(promptsOf);
  const [open, setOpen] = useState(() => beginning(all, { useId, isSystem, text }));
  const insert = (prompt, values) => {
    const filled = filledIn(prompt.text, values);
    onClose();
    if (prompt.isSystem) app.setSystem(filled);
    else app.chats.writeDraft(filled);
  };
  const choose = (prompt) => (variablesOf(prompt.text).length ? setOpen({ use: prompt }) : insert(prompt, {}));
  const change = (work) => {
    try {
      work();
      setAll(promptsOf());
      setOpen({});
    } catch (error) {
      app.tell(error.message, "bad");
    }
  };
  return html`<dialog ref=${dialog} class="prompts" aria-labelledby="prompts-title" onClose=${onClose}>
    <header class="panel-head">
      <h2 id="prompts-title">${open.use?.name ?? (open.edit ? t("prompts.one") : isSystem ? t("prompts.system") : t("composer.prompts"))}</h2>
      <${IconButton} icon="close" label=${t("common.close")} onClick=${onClose} />
    </header>
    ${open.use
      ? html`<${Variables} prompt=${open.use} onUse=${(values) => insert(open.use, values)} onBack=${() => setOpen({})} />`
      : open.edit
        ? html`<${Editor} prompt=${open.edit} onSave=${(prompt) => change(() => savePrompt(prompt))} onBack=${() => setOpen({})} />`
        : html`<${List}
            prompts=${all.filter((each) => !isSystem || each.isSystem)}
            onUse=${choose}
            onEdit=${(prompt) => setOpen({ edit: prompt })}
            onNew=${() => setOpen({ edit: { name: "", text: "", isSystem: Boolean(isSystem) } })}
            onRemove=${({ id }) => change(() => removePrompt(id))}
          />`}
  </dialog>`;
}

function beginning(all, { useId, isSystem, text }) {
  const use = all.find(({ id }) => id === useId);
  if (use) return { use };
  return text ? { edit: { name: "", text, isSystem: Boolean(isSystem) } } : {};
}

function List({ prompts, onUse, onEdit, onNew, onRemove }) {
  return html`<ul class="prompt-list">
      ${prompts.map(
        (each) => html`<li key=${each.id}>
          <button type="button" class="plain prompt" onClick=${() => onUse(each)}>
            <strong>${each.name}</strong>${each.isSystem && html` <span class="tag">${t("prompts.systemTag")}</span>`}
            <span class="soft">${each.text.slice(0, 200)}</span>
          </button>
          <${IconButton} icon="edit" label=${t("prompts.edit", { name: each.name })} onClick=${() => onEdit(each)} />
          <${IconButton} icon="trash" label=${t("prompts.delete", { name: each.name })} onClick=${() => confirm(t("prompts.confirmDelete", { name: each.name })) && onRemove(each)} />
        </li>`,
      )}
      ${prompts.length === 0 && html`<li><p class="soft">${parts("prompts.empty", { example: variable(t("prompts.topic")) })}</p></li>`}
    </ul>
    <p class="row end"><button type="button" class="primary" onClick=${onNew}>${t("prompts.new")}</button></p>`;
}

function variable(name) {
  return html`<code>{{${name}}}</code>`;
}

function Editor({ prompt, onSave, onBack }) {
  const [text, setText] = useState(prompt.text);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const name = form.get("name").trim();
    onSave({ ...prompt, name, text, isSystem: form.get("kind") === "system" });
  };
  return html`<form onSubmit=${submit}>
    <label class="field">${t("common.name")} <input name="name" required maxlength="100" autofocus defaultValue=${prompt.name} /></label>
    <label class="field">${t("prompts.text")} <textarea name="text" required rows="8" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    <label class="field">
      ${t("prompts.useAs")}
      <select name="kind">
        <option value="message">${t("prompts.message")}</option>
        <option value="system" selected=${prompt.isSystem}>${t("settings.system")}</option>
      </select>
    </label>
    <p class="soft">${parts("prompts.variable", { example: variable(t("prompts.variableName")) })}</p>
    <p class="row end"><button type="button" onClick=${onBack}>${t("common.back")}</button><button class="primary">${t("common.save")}</button></p>
  </form>`;
}

function Variables({ prompt, onUse, onBack }) {
  const names = variablesOf(prompt.text);
  const form = useRef(null);
  const submit = (event) => {
    event?.preventDefault();
    const fields = [...form.current.querySelectorAll("textarea")];
    onUse(Object.fromEntries(fields.map(({ value }, i) => [names[i], value])));
  };
  const onKeyDown = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit();
  return html`<form ref=${form} onSubmit=${submit} onKeyDown=${onKeyDown}>
    <p class="soft preview">${prompt.text}</p>
    ${names.map(
      (name, i) => html`<label class="field" key=${name}>${name} <textarea rows="1" autofocus=${i === 0}></textarea></label>`,
    )}
    <p class="row end"><button type="button" onClick=${onBack}>${t("common.back")}</button><button class="primary">${t("prompts.insert")}</button></p>
  </form>`;
}
