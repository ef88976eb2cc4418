// The agent loop: runs calls of the model that may run, and lets it continue when all of them have results.

import { runCall } from "./toolbox.js";

const DECLINED = "The user did not allow this call.";

/** Runs the calls of an answer that need no question, up to the step limit. */
export async function runAllowed(app, toolbox, chatId, path) {
  const message = path.at(-1);
  const chat = app.chats.get(chatId);
  const tools = (message.toolCalls ?? []).map(({ name }) => toolbox.find(name, chat));
  if (isOverLimit(toolbox, path)) return;
  const allowed = [...tools.keys()].filter((i) => tools[i] && toolbox.isAlways(tools[i]));
  if (allowed.length) await runCalls(app, toolbox, chatId, message, allowed);
}

/** Runs some calls of an answer. `which`: their indices. */
export async function runCalls(app, toolbox, chatId, message, which) {
  await app.writer.whileRunning(chatId, async (signal) => {
    for (const i of which) {
      const call = message.toolCalls[i];
      app.tools.setRun(message.id, i, { isRunning: true });
      try {
        app.tools.setRun(message.id, i, await runCall(toolbox.find(call.name, app.chats.get(chatId)), call, signal, toolbox.maxResultChars));
      } catch {
        app.tools.setRun(message.id, i, null); // stopped: it can be asked for again
        return;
      }
    }
  });
  await goOn(app, chatId, message);
}

export async function decline(app, chatId, message, i) {
  app.tools.setRun(message.id, i, { content: DECLINED, isError: true, ms: 0 });
  await goOn(app, chatId, message);
}

/** Returns whether the model has made as many rounds of calls since the user's message as it may without a question. */
export function isOverLimit(toolbox, path) {
  const asked = path.findLastIndex(({ role }) => role === "user");
  return path.slice(asked + 1).filter(({ toolCalls }) => toolCalls?.length).length > toolbox.config.maxSteps;
}

async function goOn(app, chatId, message) {
  const runs = app.state.callRuns[message.id] ?? {};
  const results = message.toolCalls.map(({ id }, i) => runs[i]?.content !== undefined && { toolCallId: id, ...runs[i] });
  if (results.every(Boolean)) await app.writer.answerCalls(message.id, results, chatId);
}
