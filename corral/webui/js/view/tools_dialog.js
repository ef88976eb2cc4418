// The tools that the model may call: which are on, and which run without a question.

import { html, useEffect, useState } from "../html.js";
import { IconButton } from "./icon.js";
import { loadOwnStyle } from "../style.js";
import { useModal } from "./modal.js";
import { t } from "../more_text.js";

const MAX_STEPS = 100;

await loadOwnStyle("tools");

export function ToolsDialog({ app, onClose }) {
  const dialog = useModal();
  const [toolbox, setToolbox] = useState(null);
  const [, redraw] = useState(0);
  useEffect(() => {
    app.tools.box(true).then(setToolbox);
  }, []);
  const change = (action) => {
    action();
    app.tools.changed();
    redraw((n) => n + 1);
  };
  const reload = async (servers) => {
    toolbox.change({ servers });
    await toolbox.load();
    change(() => {});
  };
  const { servers } = toolbox?.config ?? {};
  const { chat } = app.state;
  const setOn = (tools, isOn) => {
    const ids = tools.map(({ id }) => id);
    const on = [...toolbox.onIn(chat).filter((id) => !ids.includes(id)), ...(isOn ? ids : [])];
    change(() => (chat.toolsOn ? app.chats.changeFields(chat.id, { toolsOn: on }) : toolbox.change({ on })));
  };
  const setOwn = (isOwn) => change(() => app.chats.changeFields(chat.id, { toolsOn: isOwn ? toolbox.config.on : undefined }));
  return html`<dialog class="toolbox" ref=${dialog} onClose=${onClose} aria-labelledby="tools-title">
    <h2 id="tools-title">${t("composer.tools")}</h2>
    <p class="soft">${t("tool.about")}</p>
    ${!toolbox && html`<p role="status">${t("tool.looking")}</p>`}
    ${toolbox &&
    html`<label class="own">
      <input type="checkbox" checked=${Boolean(chat.toolsOn)} onChange=${({ target }) => setOwn(target.checked)} /> ${t("tool.onlyHere")}
    </label>`}
    ${toolbox?.sources.map(
      (source, i) => html`<section key=${i} aria-label=${source.title}>
        <h3>
          ${source.tools.length > 1
            ? html`<label><${All} tools=${source.tools} toolbox=${toolbox} chat=${chat} setOn=${setOn} /> ${source.title}</label>`
            : source.title}
          ${source.server &&
          html`<${IconButton}
            icon="trash"
            label=${t("common.removeNamed", { name: source.title })}
            onClick=${() => reload(servers.filter((each) => each !== source.server))}
          />`}
        </h3>
        ${source.error && html`<p class="error" role="alert">${source.error}</p>`}
        <ul>
          ${source.tools.map((tool) => html`<${Tool} key=${tool.id} tool=${tool} toolbox=${toolbox} chat=${chat} setOn=${setOn} change=${change} />`)}
        </ul>
      </section>`,
    )}
    ${toolbox && html`<${AddServer} origins=${app.state.props?.ui_mcp_origins ?? []} onAdd=${(server) => reload([...servers, server])} />`}
    ${toolbox &&
    html`<label class="steps">
      ${t("tool.steps")}
      <input
        type="number"
        min="1"
        max=${MAX_STEPS}
        value=${toolbox.config.maxSteps}
        onChange=${({ target }) =>
          change(() => toolbox.change({ maxSteps: Math.min(MAX_STEPS, Math.max(1, Math.round(target.valueAsNumber) || 1)) }))}
      />
    </label>`}
    <form method="dialog"><button class="primary">${t("common.close")}</button></form>
  </dialog>`;
}

/** Turns all tools of a source on or off. */
function All({ tools, toolbox, chat, setOn }) {
  const n = tools.filter((tool) => toolbox.isOn(tool, chat)).length;
  const isOn = n === tools.length;
  return html`<input
    type="checkbox"
    checked=${isOn}
    ref=${(box) => box && (box.indeterminate = n > 0 && !isOn)}
    onChange=${({ target }) => setOn(tools, target.checked)}
  />`;
}

function Tool({ tool, toolbox, chat, setOn, change }) {
  const isOn = toolbox.isOn(tool, chat);
  return html`<li>
    <label>
      <input type="checkbox" checked=${isOn} onChange=${({ target }) => setOn([tool], target.checked)} />
      <span>${tool.title} <span class="about soft">${tool.about ?? tool.description}</span></span>
    </label>
    ${isOn &&
    html`<select
      aria-label=${t("tool.calls", { name: tool.title })}
      value=${toolbox.isAlways(tool) ? "always" : "ask"}
      onChange=${({ target }) => change(() => toolbox.setAlways(tool, target.value === "always"))}
    >
      <option value="ask">${t("tool.ask")}</option>
      <option value="always">${t("tool.always")}</option>
    </select>`}
  </li>`;
}

/** Only addresses that the operator allows can be reached: the page's policy blocks others. */
function AddServer({ origins, onAdd }) {
  const [error, setError] = useState("");
  if (!origins.length) return null;
  const add = (event) => {
    event.preventDefault();
    const { name, url, token } = Object.fromEntries(new FormData(event.target));
    if (!URL.canParse(url) || !origins.includes(new URL(url).origin)) return setError(t("tool.allowed", { origins: origins.join(", ") }));
    setError("");
    event.target.reset();
    return onAdd({ name: name.trim(), url, token });
  };
  return html`<section aria-label=${t("tool.addServer")}>
    <h3>${t("tool.addServer")}</h3>
    <form class="add" onSubmit=${add}>
      <label>${t("common.name")} <input name="name" required maxlength="32" /></label>
      <label>${t("tool.address")} <input name="url" type="url" required placeholder="${origins[0]}/mcp" /></label>
      <label>${t("tool.token")} <input name="token" type="password" autocomplete="off" /></label>
      <button>${t("tool.add")}</button>
    </form>
    ${error && html`<p class="error" role="alert">${error}</p>`}
  </section>`;
}
