// The tools that the model may call, where they run, and which of them may run without asking.

import { ask } from "../api.js";
import { BUILTIN } from "./builtin.js";
import { McpClient, textOf } from "./mcp.js";
import { t } from "../more_text.js";

const KEY = "corral.tools";
const NAME = /[^A-Za-z0-9_-]/g;
const MAX_NAME_CHARS = 64;
const MIN_RESULT_CHARS = 1000;
const MAX_RESULT_CHARS = 20_000;
const PATIENCE_MS = 120_000;
const DEFAULT_STEPS = 10;

/** `on`: ids of tools that are offered to the model. `always`: the definitions of those that run without asking, by id:
 * one whose definition has changed asks again. `servers`: MCP servers that the page calls itself. */
const EMPTY = { on: [], always: {}, servers: [], maxSteps: DEFAULT_STEPS };

export class Toolbox {
  /** `sources`: [{ title, error, tools }]. */
  sources = [];
  config = readConfig();
  #props;

  constructor(props) {
    this.#props = props;
  }

  get tools() {
    return this.sources.flatMap(({ tools }) => tools);
  }

  /** Returns the length of a result that leaves room in the context: a token is about four characters. */
  get maxResultChars() {
    const nCtx = this.#props?.default_generation_settings?.n_ctx ?? 0;
    return Math.min(MAX_RESULT_CHARS, Math.max(MIN_RESULT_CHARS, nCtx));
  }

  /** Finds all tools; a source that fails has none, and says why. */
  async load() {
    const own = { title: t("tool.builtin"), tools: BUILTIN.map((tool) => ({ ...tool, id: `page/${tool.name}` })) };
    const remote = this.config.servers.map((server) => found(server.name, () => this.#listMcp(server), server));
    const served = this.#props?.endpoint_tools ? [found(t("tool.onServer"), listServed)] : [];
    this.sources = [own, ...(await Promise.all([...served, ...remote]))];
    return this;
  }

  change(changes) {
    this.config = { ...this.config, ...changes };
    const { on, servers, always } = this.config;
    const isEmpty = !on.length && !servers.length && !Object.keys(always).length;
    if (isEmpty) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, JSON.stringify(this.config));
  }

  /** Returns the ids of the tools that are on in a chat: its own choice, or that for all chats. */
  onIn({ toolsOn }) {
    return Array.isArray(toolsOn) ? toolsOn : this.config.on;
  }

  isOn({ id }, chat) {
    return this.onIn(chat).includes(id);
  }

  isAlways(tool) {
    return Object.hasOwn(this.config.always, tool.id) && this.config.always[tool.id] === fingerprint(tool);
  }

  setAlways(tool, isAlways) {
    const { [tool.id]: _, ...others } = this.config.always;
    this.change({ always: isAlways ? { ...others, [tool.id]: fingerprint(tool) } : others });
  }

  /** Returns the tool that a call of the model is for, if it is offered in the chat. */
  find(name, chat) {
    return this.tools.find((tool) => tool.name === name && this.isOn(tool, chat));
  }

  /** Returns the tools in the format of the API. */
  definitions(chat) {
    return this.tools.filter((tool) => this.isOn(tool, chat)).map(({ name, description, parameters }) => ({
      type: "function",
      function: { name, description, parameters },
    }));
  }

  async #listMcp({ name: label, url, token }) {
    if (!this.#props?.ui_mcp_origins?.includes(new URL(url).origin)) {
      throw new Error(t("tool.notAllowed"));
    }
    const client = new McpClient(url, token);
    const tools = await client.list();
    return tools.map(({ name, description = "", inputSchema = {} }) => ({
      id: `${url}/${name}`,
      name: modelName(`${label}_${name}`),
      title: String(name),
      description: String(description),
      parameters: inputSchema,
      run: (given, signal) => client.call(name, given, signal),
    }));
  }
}

/** Runs a call; resolves to { content, isError, ms } whatever happens, unless `signal` stops it. */
export async function runCall(tool, call, signal, maxChars) {
  const begun = performance.now();
  const end = (content, isError) => ({ content: shortened(String(content), maxChars), isError, ms: Math.round(performance.now() - begun) });
  try {
    const patience = AbortSignal.timeout(PATIENCE_MS);
    return end(await tool.run(argumentsOf(call), AbortSignal.any([signal, patience])), false);
  } catch (error) {
    if (signal.aborted) throw error;
    return end(error.name === "TimeoutError" || error.name === "AbortError" ? "The tool took too long." : error.message, true);
  }
}

function argumentsOf({ arguments: text }) {
  let value;
  try {
    value = JSON.parse(text || "{}");
  } catch {
    throw new Error("The arguments are not JSON.");
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("The arguments are not an object.");
  return value;
}

function shortened(text, maxChars) {
  if (text.length <= maxChars) return text;
  return `${text.slice(0, maxChars)}\n[cut: ${text.length} characters in all]`;
}

async function found(title, list, server) {
  try {
    return { title, server, tools: await list() };
  } catch (error) {
    return { title, server, error: error.message, tools: [] };
  }
}

/** Tools that the server runs. compat: GET and POST /tools of llama-server. */
async function listServed() {
  const tools = await ask("/tools", { signal: AbortSignal.timeout(PATIENCE_MS) }); // some servers start slowly
  return tools.map(({ tool, display_name: title, definition }) => ({
    id: `server/${tool}`,
    name: definition.function.name,
    title,
    description: definition.function.description,
    parameters: definition.function.parameters,
    run: async (params, signal) => textOf(await ask("/tools", { json: { tool, params }, signal })),
  }));
}

function modelName(text) {
  return text.replace(NAME, "_").slice(0, MAX_NAME_CHARS);
}

function fingerprint({ name, description, parameters }) {
  return JSON.stringify([name, description, parameters]);
}

function readConfig() {
  try {
    return { ...EMPTY, ...JSON.parse(localStorage.getItem(KEY)) };
  } catch {
    return EMPTY;
  }
}
