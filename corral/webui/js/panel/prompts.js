// The prompt library: use, write and remove prompts; variables are asked for.

import { html, useRef, useState } from "../html.js";
import { filledIn, promptsOf, removePrompt, savePrompt, variablesOf } from "../prompts.js";
import { IconButton } from "../view/icon.js";
import { useModal } from "../view/modal.js";

/** `useId`: a prompt to use at once; `isSystem`: only system prompts; `text`: of a new prompt to begin with. */
export function Panel({ app, state, useId, isSystem, text, onClose }) {
  const dialog = useModal();
  const [all, setAll] = useState(promptsOf);
  const [open, setOpen] = useState(() => beginning(all, { useId, isSystem, text }));
  const insert = (prompt, values) => {
    const filled = filledIn(prompt.text, values);
    onClose();
    if (prompt.isSystem) app.setSystem(filled);
    else app.writeDraft(filled);
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
      <h2 id="prompts-title">${open.use?.name ?? (open.edit ? "Prompt" : isSystem ? "System prompts" : "Prompts")}</h2>
      <${IconButton} icon="close" label="Close" onClick=${onClose} />
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
            <strong>${each.name}</strong>${each.isSystem && html` <span class="tag">system</span>`}
            <span class="soft">${each.text.slice(0, 200)}</span>
          </button>
          <${IconButton} icon="edit" label="Edit ${each.name}" onClick=${() => onEdit(each)} />
          <${IconButton} icon="trash" label="Delete ${each.name}" onClick=${() => confirm(`Delete "${each.name}"?`) && onRemove(each)} />
        </li>`,
      )}
      ${prompts.length === 0 && html`<li class="soft">Texts that you use often. <code>{{topic}}</code> in a text asks for the topic.</li>`}
    </ul>
    <p class="row end"><button type="button" class="primary" onClick=${onNew}>New prompt</button></p>`;
}

function Editor({ prompt, onSave, onBack }) {
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const name = form.get("name").trim();
    onSave({ ...prompt, name, text: form.get("text"), isSystem: form.get("kind") === "system" });
  };
  return html`<form onSubmit=${submit}>
    <label class="field">Name <input name="name" required maxlength="100" autofocus value=${prompt.name} /></label>
    <label class="field">Text <textarea name="text" required rows="8" value=${prompt.text}></textarea></label>
    <label class="field">
      Use as
      <select name="kind" value=${prompt.isSystem ? "system" : "message"}>
        <option value="message">Message</option>
        <option value="system">System prompt</option>
      </select>
    </label>
    <p class="soft">Write a variable as <code>{{name}}</code>; its value is asked for.</p>
    <p class="row end"><button type="button" onClick=${onBack}>Back</button><button class="primary">Save</button></p>
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
    <p class="row end"><button type="button" onClick=${onBack}>Back</button><button class="primary">Insert</button></p>
  </form>`;
}
