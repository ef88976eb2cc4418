// The messages of the branch that is shown. It follows a growing answer while the end is visible.

import { html, useEffect, useRef, useState } from "../html.js";
import { pathOf, siblings } from "../tree.js";
import { Icon } from "./icon.js";
import { Message } from "./message.js";
import { parts, t } from "../text.js";

const NEAR_PX = 80;

export function Thread({ app, state }) {
  const { chat, running, editing, props, callRuns } = state;
  const frame = useRef(null);
  const inner = useRef(null);
  const follows = useRef(true);
  const lastTop = useRef(0);
  const [isBelow, setBelow] = useState(false);
  const path = pathOf(chat);
  const siblingsOf = siblings(chat);
  const isBusy = Boolean(running[chat.id]);
  const toEnd = () => {
    follows.current = true;
    frame.current.scrollTop = frame.current.scrollHeight;
    lastTop.current = frame.current.scrollTop;
  };
  const onScroll = ({ target }) => {
    const isNear = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR_PX;
    if (isNear) follows.current = true;
    else if (target.scrollTop < lastTop.current) follows.current = false; // otherwise the answer has grown
    lastTop.current = target.scrollTop;
    setBelow(!follows.current);
  };
  useEffect(toEnd, [chat.id]);
  useEffect(() => {
    if (isBusy) toEnd(); // show the answer that was just requested
  }, [isBusy]);
  useEffect(() => {
    const observer = new ResizeObserver(() => follows.current && toEnd()); // formulas and images load late
    for (const each of [inner, frame]) observer.observe(each.current); // also when the message box grows
    return () => observer.disconnect();
  }, []);
  return html`<div class="thread-frame">
    <div class="thread" ref=${frame} onScroll=${onScroll} tabindex="0" role="log" aria-label=${t("thread.conversation")} aria-busy=${isBusy}>
      ${path.length === 0 && html`<${Empty} props=${props} />`}
      <div ref=${inner}>
        ${path.map(
          (message, i) => html`<${Message}
            key=${message.id}
            message=${message}
            siblings=${siblingsOf(message)}
            isLast=${i === path.length - 1}
            isBusy=${isBusy}
            isEditing=${editing.includes(message.id)}
            progress=${i === path.length - 1 ? running[chat.id] : undefined}
            runs=${callRuns[message.id]}
            nCtx=${props?.default_generation_settings?.n_ctx ?? 0}
            app=${app}
          />`,
        )}
      </div>
    </div>
    ${isBelow &&
    html`<button type="button" class="to-end" onClick=${toEnd}><${Icon} name="down" /> ${t("thread.toEnd")}</button>`}
  </div>`;
}

function Empty({ props }) {
  return html`<div class="welcome">
    <h2>${t("thread.welcome")}</h2>
    <p class="soft">
      ${props ? parts("thread.answersFrom", { model: html`<strong>${modelName(props)}</strong>` }) : t("app.connecting")}
    </p>
  </div>`;
}

export function modelName(props) {
  return (props?.model_alias ?? "").split(/[\\/]/).at(-1).replace(/\.gguf$/, "");
}
