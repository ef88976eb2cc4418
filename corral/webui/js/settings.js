// The settings of a chat: one table of fields, with the server's values as defaults.

import { ServerError, ask } from "./api.js";

const PRESETS = "corral.presets";

/** kind: number, integer, flag, text, list (of words or lines), code, json. */
export const FIELDS = [
  field("temperature", "Temperature", "number", "Main", "Higher is more random; 0 always takes the most likely token.", 0, 5, 0.05),
  field("top_k", "Top K", "integer", "Main", "Keep the K most likely tokens; 0: all.", 0, 1000),
  field("top_p", "Top P", "number", "Main", "Keep the most likely tokens with a total probability of P.", 0, 1, 0.01),
  field("min_p", "Min P", "number", "Main", "Keep tokens at least P times as likely as the most likely one.", 0, 1, 0.01),
  field("max_tokens", "Max tokens", "integer", "Main", "Tokens to generate; -1: until the model stops.", -1),
  field("seed", "Seed", "integer", "Main", "The same seed gives the same answer; -1: random.", -1),
  field("stop", "Stop strings", "list", "Main", "Texts that end the answer, one per line."),
  field("reasoning_effort", "Reasoning effort", "text", "Main", "none, low, medium or high, for models that reason; empty: the model's default."),
  field("repeat_penalty", "Repeat penalty", "number", "Repetition", "Values above 1 make repetition less likely.", 0, 3, 0.05),
  field("repeat_last_n", "Repeat window", "integer", "Repetition", "Tokens to look back; -1: all.", -1),
  field("presence_penalty", "Presence penalty", "number", "Repetition", "Subtracted once for tokens that occurred.", -2, 2, 0.1),
  field("frequency_penalty", "Frequency penalty", "number", "Repetition", "Subtracted for each occurrence of a token.", -2, 2, 0.1),
  field("dry_multiplier", "DRY multiplier", "number", "Repetition", "Penalizes repeated sequences; 0: off.", 0, 10, 0.1),
  field("dry_base", "DRY base", "number", "Repetition", "Growth of the penalty with their length.", 1, 10, 0.05),
  field("dry_allowed_length", "DRY allowed length", "integer", "Repetition", "Repeated sequences up to this length are not penalized.", 0),
  field("dry_penalty_last_n", "DRY window", "integer", "Repetition", "Tokens to look back; -1: all.", -1),
  field("dry_sequence_breakers", "DRY breakers", "list", "Repetition", "Texts that end a sequence, one per line."),
  field("dynatemp_range", "Dynamic temperature range", "number", "More sampling", "0: off.", 0, 5, 0.05),
  field("dynatemp_exponent", "Dynamic temperature exponent", "number", "More sampling", "", 0, 10, 0.1),
  field("typical_p", "Typical P", "number", "More sampling", "1: off.", 0, 1, 0.01),
  field("tfs_z", "Tail-free Z", "number", "More sampling", "1: off.", 0, 1, 0.01),
  field("top_n_sigma", "Top N sigma", "number", "More sampling", "-1: off.", -1, 10, 0.1),
  field("xtc_probability", "XTC probability", "number", "More sampling", "0: off.", 0, 1, 0.01),
  field("xtc_threshold", "XTC threshold", "number", "More sampling", "Above 0.5: off.", 0, 1, 0.01),
  field("mirostat", "Mirostat", "integer", "More sampling", "0: off, 1 or 2: its version.", 0, 2),
  field("mirostat_tau", "Mirostat tau", "number", "More sampling", "Target entropy.", 0, 20, 0.1),
  field("mirostat_eta", "Mirostat eta", "number", "More sampling", "Learning rate.", 0, 1, 0.01),
  field("min_keep", "Min keep", "integer", "More sampling", "Minimum number of tokens that samplers keep.", 0),
  field("samplers", "Samplers", "list", "More sampling", "Applied in this order, one per line."),
  field("ignore_eos", "Ignore EOS", "flag", "More sampling", "Continue where the model would stop."),
  field("n_keep", "Keep", "integer", "Context", "Prompt tokens to keep when the context is full; -1: all.", -1),
  field("n_discard", "Discard", "integer", "Context", "Tokens to discard then; 0: half of the rest.", 0),
  field("json_schema", "JSON schema", "json", "Output format", "The answer is JSON that matches this schema."),
  field("grammar", "Grammar", "code", "Output format", "The answer matches this GBNF grammar."),
  field("tools", "Tools", "json", "Output format", "Functions the model may call, as in OpenAI's API."),
  field("n_probs", "Probabilities", "integer", "Look inside", "Alternatives to show per token; 0: none.", 0, 20),
];

/** Not in `/props`, or in another format than in requests. */
const OWN_DEFAULTS = { seed: -1, reasoning_effort: "", json_schema: "", tools: "" };
const RANDOM_SEED = 4294967295;

const GIVEN_PRESETS = {
  "Server defaults": {},
  Precise: { temperature: 0.1, top_p: 0.9 },
  Creative: { temperature: 1.2, min_p: 0.1, top_k: 0 },
};

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
    if (name === "tools") return Array.isArray(parsed) ? "" : "Enter a JSON list of tools.";
    await ask("/completion", { json: { prompt: [0], n_predict: 0, cache_prompt: false, [name]: parsed } });
    return "";
  } catch (error) {
    return error.status === 400 ? error.message : "";
  }
}

/** Returns all presets by name, the user's own last. */
export function presets() {
  return { ...GIVEN_PRESETS, ...ownPresets() };
}

export function isOwnPreset(name) {
  return Object.hasOwn(ownPresets(), name);
}

/** Stores settings under a name, or deletes the name without settings. */
export function savePreset(name, settings) {
  const { [name]: _, ...others } = ownPresets();
  localStorage.setItem(PRESETS, JSON.stringify(settings ? { ...others, [name]: settings } : others));
}

function field(name, label, kind, group, about, min, max, step) {
  return { name, label, kind, group, about, min, max, step };
}

/** compat: /v1/chat/completions: probabilities are requested with OpenAI's fields. */
function requestProbs({ n_probs: n, ...fields }) {
  return n > 0 ? { ...fields, logprobs: true, top_logprobs: n } : fields;
}

function parseJson(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ServerError(400, `Invalid JSON: ${error.message}`, name);
  }
}

function ownPresets() {
  try {
    return JSON.parse(localStorage.getItem(PRESETS)) ?? {};
  } catch {
    return {};
  }
}
