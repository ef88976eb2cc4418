// Titles that the model writes: for one chat, or for each chat while nothing else runs.

import { ask } from "./api.js";
import { pathOf, titleOf } from "./tree.js";

const KEY = "corral.titles";
const IDLE_MS = 4_000;
const MAX_CHARS = 1_500; // of each message
const MAX_TITLE = 60;
const TASK = "Write a title of at most six words for the conversation above, in its language. Reply with the title only.";

let isWatched = false;

/** Whether titles are written in idle time; off by default. */
export function isOn(props) {
  const chosen = localStorage.getItem(KEY);
  return chosen === null ? props?.ui_settings?.titles === true : chosen === "on";
}

export function setOn(isWanted) {
  localStorage.setItem(KEY, isWanted ? "on" : "off");
}

/** Lets the model write the title of a chat. */
export async function writeTitle(app, id) {
  const chat = await app.chats.load(id);
  const title = chat && (await titleBy(chat));
  const isUnchanged = (await app.chats.load(id))?.title === chat?.title;
  if (title && isUnchanged) await app.chats.changeFields(id, { title });
}

/** Watches the page from now on, and writes titles of chats that have none of their own while no answer runs. */
export function watchIdle(app) {
  if (isWatched) return;
  isWatched = true;
  const tried = new Set();
  let timer = 0;
  const look = ({ chat, running, server }) => {
    clearTimeout(timer);
    if (server !== "ready" || !isOn(app.state.props) || Object.keys(running).length || tried.has(chat.id) || !isUntitled(chat)) return;
    timer = setTimeout(() => {
      tried.add(chat.id);
      writeTitle(app, chat.id).catch(() => {}); // the first words remain
    }, IDLE_MS);
  };
  look(app.state);
  app.subscribe(look);
}

function isUntitled(chat) {
  return pathOf(chat).some(({ role, state }) => role === "assistant" && state === "done") && chat.title === titleOf({ ...chat, title: "" });
}

async function titleBy(chat) {
  const path = pathOf(chat).filter(({ role, content }) => role !== "tool" && content);
  const messages = path.slice(0, 2).map(({ role, content }) => ({ role, content: content.slice(0, MAX_CHARS) }));
  const { choices } = await ask("/v1/chat/completions", {
    json: { messages: [...messages, { role: "user", content: TASK }], max_tokens: 24, temperature: 0.2, reasoning_effort: "none" },
  });
  return cleaned(choices[0].message.content ?? "");
}

/** Returns the first line without quotes, marks and a label. */
function cleaned(text) {
  const line = text.trim().split("\n")[0].replace(/^(?:title\s*:\s*)/i, "");
  return line.replace(/^[\s"'“”«»#*_`]+|[\s"'“”«»*_`.]+$/g, "").slice(0, MAX_TITLE);
}
