// Colours of code, found in a thread that is given up where it takes too long: some code takes forever.

const PATIENCE_MS = 3_000;
const MAX_FAILURES = 3;

let starting = null;
let nFailures = 0;
let last = Promise.resolve();

/** Runs of text, [[class, text]]; null where there are none for it. One after the other. */
export function runsOf(text, language) {
  last = last.then(() => (nFailures < MAX_FAILURES ? ask(text, language) : null));
  return last;
}

async function ask(text, language) {
  starting ??= start();
  try {
    return await answer(await starting, { text, language });
  } catch {
    starting = null;
    nFailures += 1;
    return null;
  }
}

/** Resolves when it has said that it is there. */
function start() {
  const worker = new Worker(new URL("colour_worker.js", import.meta.url), { type: "module" });
  return heard(worker).then(() => worker);
}

function answer(worker, question) {
  const timer = setTimeout(() => {
    worker.terminate();
    worker.dispatchEvent(new Event("error"));
  }, PATIENCE_MS);
  const heardOf = heard(worker).finally(() => clearTimeout(timer));
  worker.postMessage(question);
  return heardOf;
}

function heard(worker) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = reject;
  });
}
