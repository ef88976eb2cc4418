// The settings of a chat: one table of fields, with the server's values as defaults.

import { ServerError, ask } from "./api.js";
import { t } from "./text.js";

/** kind: number, integer, flag, text, list (of words or lines), code, json. */
export const FIELDS = [
  field("temperature", "number", "main", 0, 5, 0.05),
  field("top_k", "integer", "main", 0, 1000),
  field("top_p", "number", "main", 0, 1, 0.01),
  field("min_p", "number", "main", 0, 1, 0.01),
  field("max_tokens", "integer", "main", -1),
  field("seed", "integer", "main", -1),
  field("stop", "list", "main"),
  field("reasoning_effort", "text", "main"),
  field("repeat_penalty", "number", "repetition", 0, 3, 0.05),
  field("repeat_last_n", "integer", "repetition", -1),
  field("presence_penalty", "number", "repetition", -2, 2, 0.1),
  field("frequency_penalty", "number", "repetition", -2, 2, 0.1),
  field("dry_multiplier", "number", "repetition", 0, 10, 0.1),
  field("dry_base", "number", "repetition", 1, 10, 0.05),
  field("dry_allowed_length", "integer", "repetition", 0),
  field("dry_penalty_last_n", "integer", "repetition", -1),
  field("dry_sequence_breakers", "list", "repetition"),
  field("dynatemp_range", "number", "sampling", 0, 5, 0.05),
  field("dynatemp_exponent", "number", "sampling", 0, 10, 0.1),
  field("typical_p", "number", "sampling", 0, 1, 0.01),
  field("tfs_z", "number", "sampling", 0, 1, 0.01),
  field("top_n_sigma", "number", "sampling", -1, 10, 0.1),
  field("xtc_probability", "number", "sampling", 0, 1, 0.01),
  field("xtc_threshold", "number", "sampling", 0, 1, 0.01),
  field("mirostat", "integer", "sampling", 0, 2),
  field("mirostat_tau", "number", "sampling", 0, 20, 0.1),
  field("mirostat_eta", "number", "sampling", 0, 1, 0.01),
  field("min_keep", "integer", "sampling", 0),
  field("samplers", "list", "sampling"),
  field("ignore_eos", "flag", "sampling"),
  field("n_keep", "integer", "context", -1),
  field("n_discard", "integer", "context", 0),
  field("json_schema", "json", "format"),
  field("grammar", "code", "format"),
  field("tools", "json", "format"),
  field("n_probs", "integer", "inside", 0, 20),
];

/** Not in `/props`, or in another format than in requests. */
const OWN_DEFAULTS = { seed: -1, reasoning_effort: "", json_schema: "", tools: "" };
const RANDOM_SEED = 4294967295;

const START = "corral.start"; // in local storage
const NAMES = new Set(FIELDS.map(({ name }) => name));

export function isField(name) {
  return NAMES.has(name);
}

export function onlyFields(settings) {
  return Object.fromEntries(Object.entries(settings).filter(([name]) => isField(name)));
}

/** Returns what new chats begin with: what was kept here, otherwise what the server says for this page. */
export function startOfChats(props) {
  const { system = "", ...settings } = keptStart() ?? props?.ui_settings ?? {};
  return { system, settings: onlyFields(settings) };
}

export function keptStart() {
  return JSON.parse(localStorage.getItem(START));
}

/** Has new chats begin like this one; `null`: as the server says. */
export function keepStart(chat) {
  if (chat) localStorage.setItem(START, JSON.stringify({ ...chat.settings, system: chat.system }));
  else localStorage.removeItem(START);
}

/** Returns the number of settings of a chat that are not the server's. */
export function nChanges({ system, settings }) {
  return Object.keys(settings).length + (system.trim() ? 1 : 0);
}

/** Returns the nearest number that a field can have. */
export function clamped({ kind, min = -Infinity, max = Infinity }, value) {
  const inside = Math.min(max, Math.max(min, value));
  return kind === "integer" ? Math.round(inside) : inside;
}

/** Returns the defaults of all fields, from the server's properties. */
export function defaultsOf(props) {
  const params = { ...props?.default_generation_settings?.params, ...OWN_DEFAULTS };
  const served = props?.default_generation_settings?.params?.seed;
  if (served !== undefined && served !== RANDOM_SEED) params.seed = served;
  return Object.fromEntries(FIELDS.map(({ name }) => [name, params[name] ?? ""]));
}

/** Returns the fields of a request that differ from the defaults. Throws ServerError for invalid JSON. */
export function requestFields(settings) {
  const fields = {};
  for (const { name, kind } of FIELDS) {
    const value = settings[name];
    if (value === undefined || value === "" || value === null) continue;
    fields[name] = kind === "json" ? parseJson(name, value) : value;
  }
  return requestProbs(fields);
}

/** Lets the server check a grammar or schema; returns the error, or "". */
export async function checkForm(name, value) {
  if (!value.trim()) return "";
  try {
    const parsed = name === "grammar" ? value : parseJson(name, value);
    if (name === "tools") return Array.isArray(parsed) ? "" : t("settings.wantsList");
    await ask("/completion", { json: { prompt: [0], n_predict: 0, cache_prompt: false, [name]: parsed } });
    return "";
  } catch (error) {
    return error.status === 400 ? error.message : "";
  }
}

function field(name, kind, group, min, max, step) {
  return { name, kind, group, min, max, step };
}

/** compat: /v1/chat/completions: probabilities are requested with OpenAI's fields. */
function requestProbs({ n_probs: n, ...fields }) {
  return n > 0 ? { ...fields, logprobs: true, top_logprobs: n } : fields;
}

function parseJson(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ServerError(400, t("settings.invalidJson", { reason: error.message }), name);
  }
}
