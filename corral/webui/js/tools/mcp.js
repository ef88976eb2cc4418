// A client for MCP servers over streamable HTTP. Whatever a server returns is data: it is shown as text.

import { t } from "../more_text.js";

const VERSION = "2025-06-18";
const PATIENCE_MS = 60_000;
const MAX_BYTES = 2_000_000; // of a response
const MAX_PAGES = 10; // of a list of tools
const MAX_TOOLS = 128;

export class McpClient {
  #url;
  #token;
  #session = "";
  #version = "";
  #nextId = 1;

  constructor(url, token = "") {
    this.#url = url;
    this.#token = token;
  }

  /** Returns [{ name, description, inputSchema }]. Throws an Error. */
  async list() {
    await this.#open();
    const tools = [];
    let cursor;
    for (let i = 0; i < MAX_PAGES; i += 1) {
      const page = await this.#ask("tools/list", cursor ? { cursor } : {});
      if (!Array.isArray(page.tools)) throw new Error(t("mcp.noList"));
      tools.push(...page.tools);
      cursor = page.nextCursor;
      if (!cursor) break;
    }
    return tools.slice(0, MAX_TOOLS);
  }

  async call(name, given, signal) {
    if (!this.#version) await this.#open();
    return textOf(await this.#ask("tools/call", { name, arguments: given }, signal));
  }

  async #open() {
    this.#session = "";
    const clientInfo = { name: "Corral", version: "1" };
    const { protocolVersion } = await this.#ask("initialize", { protocolVersion: VERSION, capabilities: {}, clientInfo });
    this.#version = String(protocolVersion);
    await this.#send({ jsonrpc: "2.0", method: "notifications/initialized" });
  }

  async #ask(method, params, signal) {
    const id = this.#nextId++;
    const answer = await this.#send({ jsonrpc: "2.0", id, method, params }, signal);
    if (answer?.error) throw new Error(String(answer.error.message ?? t("mcp.error")));
    if (!answer?.result || typeof answer.result !== "object") throw new Error(t("mcp.noAnswer"));
    return answer.result;
  }

  /** Returns the message that answers this one, or null. */
  async #send(message, signal) {
    const patience = AbortSignal.timeout(PATIENCE_MS);
    let response;
    try {
      response = await fetch(this.#url, {
        method: "POST",
        headers: this.#headers(),
        body: JSON.stringify(message),
        credentials: "omit",
        redirect: "error",
        referrerPolicy: "no-referrer",
        signal: signal ? AbortSignal.any([signal, patience]) : patience,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error(t("mcp.unreachable"));
    }
    this.#session = response.headers.get("mcp-session-id") || this.#session;
    if (response.status === 404) this.#version = ""; // the session has ended
    if (!response.ok) throw new Error(t("mcp.status", { status: String(response.status) }));
    return message.id === undefined ? null : read(response, message.id);
  }

  #headers() {
    return {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      ...(this.#version && { "mcp-protocol-version": this.#version }),
      ...(this.#session && { "mcp-session-id": this.#session }),
      ...(this.#token && { authorization: `Bearer ${this.#token}` }),
    };
  }
}

/** Returns the text of a tool's result. Throws an Error for one that says it is an error. */
export function textOf({ content, structuredContent, isError }) {
  const parts = Array.isArray(content) ? content.map(partText) : [];
  const text = parts.join("\n") || (structuredContent === undefined ? "" : JSON.stringify(structuredContent));
  if (isError) throw new Error(text || t("mcp.toolFailed"));
  return text;
}

function partText(part) {
  if (part?.type === "text") return String(part.text ?? "");
  if (part?.type === "resource" && typeof part.resource?.text === "string") return part.resource.text;
  return `[${String(part?.type ?? "unknown")} ${String(part?.mimeType ?? "")}]`.replace(" ]", "]");
}

async function read(response, id) {
  const isStream = (response.headers.get("content-type") ?? "").startsWith("text/event-stream");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let n = 0; ; ) {
    const { value, done } = await reader.read();
    if (done) break;
    n += value.length;
    if (n > MAX_BYTES) {
      reader.cancel().catch(() => {});
      throw new Error(t("mcp.tooLarge"));
    }
    text += value;
    if (!isStream) continue;
    const events = text.split(/\r?\n\r?\n/);
    text = events.pop();
    const found = events.map(messageOf).find((message) => message?.id === id);
    if (found) {
      reader.cancel().catch(() => {});
      return found;
    }
  }
  return isStream ? messageOf(text) : parsed(text);
}

function messageOf(event) {
  const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return data.length ? parsed(data.map((line) => line.slice(5).trimStart()).join("\n")) : null;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(t("mcp.notJson"));
  }
}
