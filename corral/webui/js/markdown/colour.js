// Computes syntax colours in a worker, which is terminated after a time limit: some code takes forever.

const PATIENCE_MS = 3_000;
const MAX_FAILURES = 3;

let starting = null;
let nFailures = 0;
let last = Promise.resolve();

/** Returns runs of text, [[class, text]], or null. Requests run one after the other. */
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

/** Resolves when the worker has reported that it is ready. */
function start() {
  const worker = new Worker(new URL("colour_worker.js", import.meta.url), { type: "module" });
  return heard(worker).then(() => worker);
}

function answer(worker, question) {
  const end = () => {
    worker.terminate();
    worker.dispatchEvent(new Event("error"));
  };
  // In two halves: a machine that stalls uses up one of them.
  let timer = setTimeout(() => (timer = setTimeout(end, PATIENCE_MS / 2)), PATIENCE_MS / 2);
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
