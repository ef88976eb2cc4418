// A chat in the terminal, for Node 18 and newer; it remembers what was said.
//
//    node chat.mjs [--url http://127.0.0.1:8080] [--key KEY] [--system TEXT] [--max-tokens N] [--temperature T]
//
// Ctrl-C ends an answer, and the program where there is none.

import { createInterface } from "node:readline/promises";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    url: { type: "string", default: process.env.CORRAL_URL ?? "http://127.0.0.1:8080" },
    key: { type: "string", default: process.env.LLAMA_API_KEY ?? "" },
    system: { type: "string", default: "" },
    "max-tokens": { type: "string", default: "-1" },
    temperature: { type: "string" },
  },
});
const messages = options.system ? [{ role: "system", content: options.system }] : [];
const terminal = createInterface({ input: process.stdin, output: process.stdout });
let request = null;

terminal.on("SIGINT", () => (request ? request.abort() : terminal.close()));
terminal.setPrompt("> ");
terminal.prompt();
for await (const line of terminal) {
  if (line.trim()) await say(line);
  terminal.prompt();
}
process.stdout.write("\n");

/** What came of an answer is remembered even if it was stopped; a question without any is forgotten. */
async function say(text) {
  messages.push({ role: "user", content: text });
  request = new AbortController();
  let content = "";
  try {
    for await (const piece of answer(request.signal)) {
      content += piece;
      process.stdout.write(piece);
    }
    process.stdout.write("\n");
  } catch (error) {
    console.error(request.signal.aborted ? "" : `\n${error.cause?.message ?? error.message}`);
  }
  request = null;
  if (content) messages.push({ role: "assistant", content });
  else messages.pop();
}

async function* answer(signal) {
  const response = await fetch(`${options.url}/v1/chat/completions`, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      ...(options.key && { Authorization: `Bearer ${Buffer.from(options.key).toString("latin1")}` }),
    },
    body: JSON.stringify({
      messages,
      stream: true,
      max_tokens: Number(options["max-tokens"]),
      ...(options.temperature && { temperature: Number(options.temperature) }),
    }),
    signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const data of events(response.body)) {
    if (data.error) throw new Error(data.error.message);
    yield data.choices[0]?.delta.content ?? "";
  }
}

async function* events(body) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of body) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice("data: ".length));
    }
  }
}
