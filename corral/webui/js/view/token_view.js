// An answer token by token: the paler, the more likely; a popover shows the alternatives of a token.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { joinTokens } from "../token.js";
import { loadOwnStyle } from "../style.js";
import { nearestBelow } from "./token_line.js";
import { number, percent as percentOf, t } from "../more_text.js";

await loadOwnStyle("tokens");

const N_SHADES = 10;
const SIGNS = { " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍" };
const MARGIN = 8; // pixels between the popover and the page's edge

export function TokenView({ tokens }) {
  const all = useMemo(() => joinTokens(tokens), [tokens]);
  const [at, setAt] = useState(null);
  const list = useRef(null);
  useActive(list, all, at);
  const onKeyDown = (event) => {
    const next = event.key === "Escape" ? null : target(event.key, at ?? 0, list.current.children);
    if (next === undefined || (next === null && at === null)) return;
    event.preventDefault();
    event.stopPropagation();
    setAt(next);
  };
  const onPointer = (event) => {
    const index = indexOf(event.target);
    if (index >= 0) setAt(index);
  };
  const spans = useMemo(() => all.map((token, i) => html`<${Token} key=${i} token=${token} index=${i} />`), [all]);
  return html`<div class="token-view">
    <${Legend} />
    <div
      ref=${list}
      class="tokens"
      role="listbox"
      tabindex="0"
      aria-orientation="horizontal"
      aria-label=${t("tokens.label")}
      onKeyDown=${onKeyDown}
      onFocus=${() => setAt((before) => before ?? 0)}
      onBlur=${() => setAt(null)}
      onClick=${onPointer}
      onPointerMove=${(event) => event.pointerType === "mouse" && onPointer(event)}
      onPointerLeave=${(event) =>
        event.pointerType === "mouse" && document.activeElement !== list.current && setAt(null)}
    >
      ${spans}
    </div>
    ${at !== null && all[at] && html`<${Details} token=${all[at]} anchor=${() => list.current?.children[at]} />`}
  </div>`;
}

/** Makes white space and empty text visible. */
export function visible(text) {
  return text === "" ? t("tokens.nothing") : text.replace(/[ \n\t\r]/g, (character) => SIGNS[character]);
}

export function percent(prob) {
  if (prob > 0 && prob < 0.001) return t("unit.lessThanPercent", { n: number(0.1, 1) });
  return percentOf(prob, prob < 0.9995 && prob > 0 ? 1 : 0);
}

function Token({ token, index }) {
  const shade = Math.min(N_SHADES - 1, Math.floor(token.prob * N_SHADES));
  return html`<span class="token shade-${shade}" role="option" aria-selected="false" data-index=${index}
    >${shown(token.text)}</span
  >`;
}

/** The text, with signs for characters that cannot be pointed at. */
function shown(text) {
  if (text === "") return html`<span class="token-sign">∅</span>`;
  const [first, ...lines] = text.split("\n");
  return [first, ...lines.flatMap((line) => [html`<span class="token-sign">↵</span>`, "\n", line])];
}

function Legend() {
  return html`<p class="token-legend" aria-hidden="true">
    ${t("tokens.unlikely")}${" "}
    ${Array.from({ length: N_SHADES }, (_, i) => html`<span key=${i} class="shade-${i}"></span>`)}
    ${" "}${t("tokens.certain")}
  </p>`;
}

/** The details of a token, next to it. */
function Details({ token, anchor }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const place = () => placeBeside(box.current, anchor());
    box.current.showPopover();
    place();
    addEventListener("scroll", place, { capture: true, passive: true });
    addEventListener("resize", place);
    return () => {
      removeEventListener("scroll", place, { capture: true });
      removeEventListener("resize", place);
    };
  }, [token]);
  const others = token.top.filter(({ text }) => text !== token.text);
  return html`<div ref=${box} class="token-details" popover="manual" role="presentation" aria-hidden="true">
    <${Bar} token=${token} isChosen=${true} />
    ${token.pieces?.map((piece, i) => html`<${Bar} key=${i} token=${piece} />`)}
    ${others.map((other, i) => html`<${Bar} key=${i} token=${other} />`)}
  </div>`;
}

function Bar({ token, isChosen = false }) {
  return html`<div class="token-bar ${isChosen ? "is-chosen" : ""}">
    <code>${visible(token.text)}</code>
    <span class="token-share"><span style=${{ width: `${100 * token.prob}%` }}></span></span>
    <span class="token-percent">${percent(token.prob)}</span>
  </div>`;
}

/** Marks the selected token, and describes it as the popover does. */
function useActive(list, all, at) {
  useEffect(() => {
    const option = at === null ? null : list.current.children[at];
    if (!option) return undefined;
    option.id = `token-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
    option.setAttribute("aria-selected", "true");
    option.setAttribute("aria-label", spoken(all[at]));
    list.current.setAttribute("aria-activedescendant", option.id);
    if (document.activeElement === list.current) option.scrollIntoView({ block: "nearest" });
    return () => {
      for (const name of ["id", "aria-label"]) option.removeAttribute(name);
      option.setAttribute("aria-selected", "false");
      list.current?.removeAttribute("aria-activedescendant");
    };
  }, [all, at]);
}

function spoken({ text, prob, top }) {
  const others = top.filter((other) => other.text !== text);
  const rest = others.map((other) => `${named(other.text)} ${percent(other.prob)}`).join(", ");
  const token = `${named(text)}, ${percent(prob)}`;
  return rest ? t("tokens.or", { token, others: rest }) : token;
}

function named(text) {
  return text.trim() ? text.trim() : visible(text).replaceAll("␣", `${t("tokens.space")} `).replaceAll("↵", `${t("tokens.newLine")} `).trim();
}

/** Returns the target of a key from `at`; undefined for other keys. */
function target(key, at, children) {
  const last = children.length - 1;
  const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last };
  if (key in steps) return Math.max(0, Math.min(last, steps[key]));
  if (key === "ArrowDown") return nearestBelow(children, at, 1);
  if (key === "ArrowUp") return nearestBelow(children, at, -1);
  return undefined;
}

function indexOf(node) {
  return Number(node.closest?.(".token")?.dataset.index ?? -1);
}

/** Places the box below the token, or above it if there is no room. */
function placeBeside(box, token) {
  if (!box || !token) return;
  const { left, bottom, top } = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const isBelow = bottom + height + MARGIN <= innerHeight || top < height + MARGIN;
  box.style.left = `${Math.max(MARGIN, Math.min(left, innerWidth - width - MARGIN))}px`;
  box.style.top = `${isBelow ? bottom + 4 : top - height - 4}px`;
}
