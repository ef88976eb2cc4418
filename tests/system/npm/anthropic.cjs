// Streams a message with Anthropic's package and prints it as JSON: node anthropic.cjs URL, in the folder of node_modules.
const { createRequire } = require("node:module");
const { Anthropic } = createRequire(`${process.cwd()}/`)("@anthropic-ai/sdk");

async function main(baseURL) {
  const client = new Anthropic({ baseURL, apiKey: "none" });
  const messages = [{ role: "user", content: "Name three colours." }];
  const stream = client.messages.stream({ model: "any", max_tokens: 8, messages });
  let text = "";
  stream.on("text", (piece) => (text += piece));
  const whole = await stream.finalMessage();
  console.log(JSON.stringify({ text, final: whole.content[0].text }));
}

main(process.argv[2]);
