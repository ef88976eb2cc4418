// The probability of every token, and its alternatives.

/** Returns the tokens of a stream's chunk: [{ text, prob, top: [{ text, prob }] }]. */
export function tokensOf(chunk) {
  const content = chunk?.choices?.[0]?.logprobs?.content ?? [];
  return content.map(({ top_logprobs: top, ...token }) => ({ ...read(token), top: (top ?? []).map(read) }));
}

/** Joins tokens that are parts of one character, with `pieces`. */
export function joinTokens(tokens) {
  const joined = [];
  for (const token of tokens) {
    const before = joined.at(-1);
    const both = before && canGrow(before) ? join(before, token) : null;
    if (both && (!both.bytes || canGrow(both))) joined[joined.length - 1] = both;
    else joined.push(token);
  }
  return joined;
}

function read({ token, logprob, bytes }) {
  const prob = Number.isFinite(logprob) ? Math.min(1, Math.exp(logprob)) : 0;
  const isPart = Array.isArray(bytes) && !isWhole(bytes);
  return isPart ? { text: nameOf(bytes), prob, bytes } : { text: token ?? "", prob };
}

function join(first, second) {
  const bytes = [...first.bytes, ...(second.bytes ?? new TextEncoder().encode(second.text))];
  const both = { prob: first.prob * second.prob, top: [], pieces: [...(first.pieces ?? [first]), second] };
  if (isWhole(bytes)) return { ...both, text: new TextDecoder().decode(new Uint8Array(bytes)) };
  return { ...both, text: nameOf(bytes), bytes };
}

function isWhole(bytes) {
  return isDecoded(bytes, { stream: false });
}

/** Whether it ends with an incomplete character. */
function canGrow({ bytes }) {
  return Boolean(bytes) && isDecoded(bytes, { stream: true });
}

function isDecoded(bytes, options) {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes), options);
    return true;
  } catch {
    return false;
  }
}

function nameOf(bytes) {
  return bytes.map((byte) => `‹${byte.toString(16).padStart(2, "0").toUpperCase()}›`).join("");
}
