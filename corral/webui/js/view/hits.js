// The places of a chat that contain the text of a search: marks, their number, and the way from one to the next, also into
// the next chat that was found.

import { html, useEffect, useMemo } from "../html.js";
import { dataOf, shownText, textNodes } from "../markdown/shown_text.js";
import { loadOwnStyle } from "../style.js";
import { pathOf } from "../tree.js";
import { t } from "../more_text.js";
import { IconButton } from "./icon.js";

const MAX_MARKS = 2_000;
const MAX_LOOK_MS = 5_000; // what is drawn on the way moves the place
const N_STILL = 5; // frames

await loadOwnStyle("found");

/** Goes to the next place (1), the previous one (-1), or the first one of the chat (0). */
export async function go(app, step) {
  await app.chats.searching.catch(() => {}); // then the list stays as it is
  const { query, chat, chats } = app.state;
  const places = placesIn(chat, query);
  const at = positionIn(app.state, places, step);
  if (places[at]) return show(app, at);
  const i = chats.findIndex(({ id }) => id === chat.id);
  const next = chats.at(i < 0 ? Math.min(0, step) : (i + step) % chats.length);
  if (step && next && next.id !== chat.id) await app.chats.open(next.id);
  return show(app, step < 0 ? placesIn(app.state.chat, query).length - 1 : 0);
}

function show(app, at) {
  const { chat, query } = app.state;
  app.set({ hit: { id: chat.id, query, at } });
}

function positionIn({ hit, chat, query }, places, step) {
  if (hit?.id === chat.id && hit.query === query && step) return hit.at + step;
  return step < 0 ? places.length - 1 : 0;
}

export function Hits({ app, state }) {
  const { chat, query, hit } = state;
  const places = useMemo(() => placesIn(chat, query), [chat, query]);
  const at = hit?.id === chat.id && hit.query === query ? hit.at : -1;
  useEffect(() => {
    const marks = new Marks(document.querySelector(".thread"), query);
    return () => marks.close();
  }, [chat.id, query]);
  useEffect(() => {
    if (!places[at]) return undefined;
    const stopping = new AbortController();
    lookAt(document.querySelector(".thread"), places[at], query, stopping.signal);
    return () => stopping.abort();
  }, [hit]);
  if (!places.length) return null;
  return html`<div class="hits" role="group" aria-label=${t("hits.title", { query })}>
    <span role="status">${at < 0 ? t("hits.n", { n: places.length }) : t("hits.at", { at: at + 1, n: places.length })}</span>
    <${IconButton} icon="send" label=${t("hits.previous")} onClick=${() => go(app, -1)} />
    <${IconButton} icon="down" label=${t("hits.next")} onClick=${() => go(app, 1)} />
    <${IconButton} icon="close" label=${t("hits.close")} onClick=${() => app.chats.search("")} />
  </div>`;
}

/** Returns the places of a text: the id of the message, and which place in it. */
function placesIn(chat, query) {
  const wanted = query.toLowerCase();
  const [word = ""] = (wanted.match(/[\p{L}\p{N}]+/gu) ?? []).sort((a, b) => b.length - a.length);
  return pathOf(chat).flatMap((message) => {
    if (!message.content.toLowerCase().includes(word)) return []; // reading all Markdown would take long
    const n = shownText(message).toLowerCase().split(wanted).length - 1;
    return Array.from({ length: n }, (_, nth) => ({ id: message.id, nth }));
  });
}

/** Brings a place to the middle, and keeps it there while what is around it is drawn, unless the user scrolls. */
async function lookAt(thread, { id, nth }, query, signal) {
  const until = performance.now() + MAX_LOOK_MS;
  let isLeft = false;
  for (const name of ["wheel", "touchmove"]) thread.addEventListener(name, () => (isLeft = true), { signal, passive: true });
  for (let nStill = 0, isFar = true; nStill < N_STILL && performance.now() < until; ) {
    const message = thread.querySelector(`article[data-id="${id}"]`); // another one when it is drawn
    if (!message || isLeft || signal.aborted) return;
    const ranges = rangesIn(message, query);
    const range = ranges[Math.min(nth, ranges.length - 1)];
    if (range || isFar) nStill = bringToMiddle(thread, range ?? message) && range ? nStill + 1 : 0;
    isFar = false;
    CSS.highlights?.set("found-now", new Highlight(...(range ? [range] : [])));
    await new Promise(requestAnimationFrame);
  }
}

/** Returns whether it was there already. */
function bringToMiddle(thread, place) {
  const { top, height } = place.getBoundingClientRect();
  const frame = thread.getBoundingClientRect();
  const before = thread.scrollTop;
  thread.scrollTop += top - frame.top - (frame.height - Math.min(height, frame.height)) / 2;
  return Math.abs(thread.scrollTop - before) < 2;
}

/** Marks all places that are drawn, also when more are. */
class Marks {
  #thread;
  #query;
  #timer = 0;
  #watcher = new MutationObserver(() => (this.#timer ||= setTimeout(() => this.#mark(), 100)));

  constructor(thread, query) {
    this.#thread = thread;
    this.#query = query;
    this.#watcher.observe(thread, { childList: true, subtree: true, characterData: true });
    this.#mark();
  }

  close() {
    this.#watcher.disconnect();
    clearTimeout(this.#timer);
    for (const name of ["found", "found-now"]) CSS.highlights?.delete(name);
  }

  #mark() {
    this.#timer = 0;
    const ranges = [];
    for (const message of this.#thread.querySelectorAll("article")) {
      if (ranges.length < MAX_MARKS) ranges.push(...rangesIn(message, this.#query));
    }
    CSS.highlights?.set("found", new Highlight(...ranges));
  }
}

/** Returns where a text is in what a message says, as it is drawn. */
function rangesIn(message, query) {
  const wanted = query.toLowerCase();
  return [...message.querySelectorAll(".said, .markdown, .plain-text, .tool-result")].flatMap((body) => {
    if (body.parentElement.closest(".markdown, .reasoning") || !body.textContent.toLowerCase().includes(wanted)) return [];
    return rangesOf(body, wanted);
  });
}

function rangesOf(body, wanted) {
  let length = 0;
  const nodes = textNodes(body).map((node) => ({ node, from: (length += node.length) - node.length }));
  const text = dataOf(nodes.map(({ node }) => node)).toLowerCase();
  if (text.length !== length) return []; // places would be others
  const ranges = [];
  let i = 0;
  const place = (at) => {
    while (i + 1 < nodes.length && nodes[i + 1].from <= at) i += 1;
    return [nodes[i].node, at - nodes[i].from];
  };
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
    const range = new Range();
    range.setStart(...place(at));
    const [node, offset] = place(at + wanted.length - 1);
    range.setEnd(node, offset + 1);
    ranges.push(range);
  }
  return ranges;
}
