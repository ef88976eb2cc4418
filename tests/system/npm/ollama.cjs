// Streams a chat with ollama's package and prints it as JSON: node ollama.cjs URL, in the folder of node_modules.
const { createRequire } = require("node:module");
const { Ollama } = createRequire(`${process.cwd()}/`)("ollama");

async function main(host) {
  const client = new Ollama({ host });
  const options = { num_predict: 8, seed: 7 };
  const chat = { model: "any", messages: [{ role: "user", content: "Name three colours." }], options };
  let text = "";
  for await (const part of await client.chat({ ...chat, stream: true })) text += part.message.content;
  const whole = await client.chat(chat);
  console.log(JSON.stringify({ text, final: whole.message.content }));
}

main(process.argv[2]);
