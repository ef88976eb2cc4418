// Long files: their number of tokens, and ways to make them fit.

import { ask } from "../api.js";

const PIECE_CHARS = 200_000; // tokenized at once
const SHARE = 0.6; // of the context, for all files of a message
const MIN_TOKENS = 64;
const MIN_SUMMARY_TOKENS = 96;
const MAX_SUMMARY_TOKENS = 600;

/** Returns the number of tokens that all files of a message should have at most. */
export function roomFor(nCtx) {
  return Math.max(MIN_TOKENS, Math.floor(nCtx * SHARE));
}

export async function countTokens(text) {
  let n = 0;
  for (let at = 0; at < text.length; at += PIECE_CHARS) {
    const { tokens } = await ask("/tokenize", { json: { content: text.slice(at, at + PIECE_CHARS) } });
    n += tokens.length;
  }
  return n;
}

/** Returns the beginning of a text of `n` tokens that has at most `limit`, up to the end of a line if one is near. */
export async function cutText(text, n, limit) {
  let found = text;
  for (let count = n; count > limit; count = await countTokens(found)) {
    const end = Math.floor((found.length * limit) / count) - 1;
    if (end <= 0) return "";
    const line = found.lastIndexOf("\n", end);
    found = found.slice(0, line > end * 0.9 ? line : end);
  }
  return found;
}

/** Summarizes a text of `n` tokens part by part, so that the summaries have about `limit` tokens together. Throws
 * ServerError, or AbortError when `signal` stops it. `onProgress` gets the number of the part and of all parts. */
export async function summarize(name, text, n, limit, nCtx, { signal, onProgress }) {
  const parts = split(text, Math.max(1, Math.ceil(n / Math.max(MIN_TOKENS, nCtx / 2))));
  const nEach = Math.min(MAX_SUMMARY_TOKENS, Math.max(MIN_SUMMARY_TOKENS, Math.floor(limit / parts.length)));
  const summaries = [];
  for (const [i, part] of parts.entries()) {
    onProgress(i + 1, parts.length);
    summaries.push(await summarizePart(name, part, i + 1, parts.length, nEach, signal));
  }
  return `Summary of ${name}, in ${parts.length} parts:\n\n${summaries.join("\n\n")}`;
}

async function summarizePart(name, text, i, n, nTokens, signal) {
  const question = `Summarize part ${i} of ${n} of the file above in at most ${Math.floor(nTokens / 2)} words. Write only the summary.`;
  const { choices } = await ask("/v1/chat/completions", {
    json: {
      messages: [{ role: "user", content: `--- File: ${name}, part ${i} ---\n${text}\n\n${question}` }],
      max_tokens: nTokens,
    },
    signal,
  });
  return (choices[0].message.content ?? "").trim();
}

/** Splits a text into `n` parts of about the same length, at ends of lines where they are near. */
function split(text, n) {
  const parts = [];
  let start = 0;
  for (let i = 1; i <= n; i += 1) {
    const wanted = Math.floor((text.length * i) / n);
    const line = text.lastIndexOf("\n", wanted);
    const end = i < n && line > start && wanted - line < 2000 ? line + 1 : wanted;
    parts.push(text.slice(start, end));
    start = end;
  }
  return parts.filter((part) => part.trim());
}
