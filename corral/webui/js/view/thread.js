// The messages of the branch that is shown; those far away are drawn when they come near. It follows a growing answer while
// the end is visible.

import { html, useEffect, useRef, useState } from "../html.js";
import { pathOf, siblings } from "../tree.js";
import { authorOf, detailsOf, modelName } from "../identity.js";
import { Icon } from "./icon.js";
import { Lazy } from "./lazy.js";
import { Message } from "./message.js";
import { t } from "../text.js";

const NEAR_PX = 80;
const SLACK_PX = 16; // what is drawn above may be a little shorter than it was expected to be
const N_DRAWN = 8; // the last ones at least, where a chat begins
const AHEAD = "200% 0px"; // how far from what is seen messages are drawn

export function Thread({ app, state, onOpen }) {
  const { chat, running, editing, props, callRuns } = state;
  const frame = useRef(null);
  const inner = useRef(null);
  const follows = useRef(true);
  const lastTop = useRef(0);
  const [isBelow, setBelow] = useState(false);
  const [near] = useState(() => new Near());
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
    else if (target.scrollTop < lastTop.current - SLACK_PX) follows.current = false; // otherwise the answer has grown
    if (isNear || !follows.current) lastTop.current = target.scrollTop;
    setBelow(!follows.current);
  };
  useEffect(toEnd, [chat.id]);
  useEffect(() => {
    if (state.hit) follows.current = false; // another place is wanted
  }, [state.hit]);
  useEffect(() => {
    if (isBusy) toEnd(); // show the answer that was just requested
  }, [isBusy]);
  useEffect(() => {
    const observer = new ResizeObserver(() => follows.current && toEnd()); // formulas and images load late
    for (const each of [inner, frame]) observer.observe(each.current); // also when the message box grows
    near.begin(frame.current);
    return () => (observer.disconnect(), near.end());
  }, []);
  return html`<div class="thread-frame">
    <div class="thread ${isBelow ? "reads" : ""}" ref=${frame} onScroll=${onScroll} tabindex="0" role="log" aria-label=${t("thread.conversation")} aria-busy=${isBusy}>
      ${path.length === 0 && html`<${Empty} app=${app} state=${state} onOpen=${onOpen} />`}
      <div ref=${inner}>
        ${path.map(
          (message, i) => html`<${Message}
            key=${message.id}
            message=${message}
            siblings=${siblingsOf(message)}
            author=${authorOf(message, state)}
            isLast=${i === path.length - 1}
            isNear=${i >= path.length - N_DRAWN}
            near=${near}
            isBusy=${isBusy}
            isEditing=${editing.includes(message.id)}
            progress=${running[chat.id]?.[message.id]}
            runs=${callRuns[message.id]}
            nCtx=${props?.default_generation_settings?.n_ctx ?? 0}
            app=${app}
          />`,
        )}
      </div>
    </div>
    ${state.query && path.length > 0 && html`<${Lazy} from="./hits.js" view="Hits" app=${app} state=${state} />`}
    ${isBelow &&
    html`<button type="button" class="to-end" onClick=${toEnd}><${Icon} name="down" /> ${t("thread.toEnd")}</button>`}
  </div>`;
}

/** Tells elements when they come near what is seen, or are about to be printed. */
class Near {
  #tell = new Map();
  #observer = null;

  begin(root) {
    const come = (entries) => entries.forEach(({ isIntersecting, target }) => isIntersecting && this.#tell.get(target)?.());
    this.#observer = new IntersectionObserver(come, { root, rootMargin: AHEAD });
    for (const element of this.#tell.keys()) this.#observer.observe(element);
    addEventListener("beforeprint", this.#all);
  }

  end() {
    this.#observer.disconnect();
    removeEventListener("beforeprint", this.#all);
  }

  /** Returns a function that ends it. */
  watch(element, tell) {
    this.#tell.set(element, tell);
    this.#observer?.observe(element);
    return () => {
      this.#tell.delete(element);
      this.#observer?.unobserve(element);
    };
  }

  #all = () => this.#tell.forEach((tell) => tell());
}

/** What one meets first: which model it is, and what one can do here. */
function Empty({ app, state, onOpen }) {
  const { props } = state;
  const cards = [
    ["clip", t("card.file"), t("card.file.about"), () => document.getElementById("files").click()],
    ["sliders", t("card.settings"), t("card.settings.about"), () => onOpen("settings")],
    ["book", t("card.prompts"), t("card.prompts.about"), () => app.openPanel("prompts")],
    ["tokens", t("card.commands"), t("card.commands.about"), () => app.openPanel("palette")],
  ];
  return html`<div class="welcome">
    <h2>${t("thread.welcome")}</h2>
    <p class="identity soft">
      ${props ? html`<strong dir="auto">${modelName(state)}</strong>${detailsOf(props).map((each) => html` · <span>${each}</span>`)}` : t("app.connecting")}
    </p>
    <div class="cards">
      ${cards.map(
        ([icon, name, about, onClick]) => html`<button type="button" key=${icon} onClick=${onClick}>
          <${Icon} name=${icon} /><span>${name}<small class="soft">${about}</small></span>
        </button>`,
      )}
    </div>
  </div>`;
}
