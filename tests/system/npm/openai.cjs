// Streams a chat with openai's package and prints it as JSON: node openai.cjs URL, in the folder of node_modules.
const { createRequire } = require("node:module");
const OpenAI = createRequire(`${process.cwd()}/`)("openai");

async function main(url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const messages = [{ role: "user", content: "Name three colours." }];
  const stream = client.chat.completions.stream({ model: "any", max_tokens: 8, seed: 7, messages });
  let text = "";
  stream.on("content", (piece) => (text += piece));
  const whole = await stream.finalChatCompletion();
  console.log(JSON.stringify({ text, final: whole.choices[0].message.content }));
}

main(process.argv[2]);
