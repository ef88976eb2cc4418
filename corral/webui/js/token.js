// What the model thought of every token: its own probability, and what else it might have been.

const decoder = new TextDecoder("utf-8", { fatal: true });

/** The tokens of a chunk of a chat's stream: [{ text, prob, top: [{ text, prob }] }]. */
export function tokensOf(chunk) {
  const content = chunk?.choices?.[0]?.logprobs?.content ?? [];
  return content.map(({ top_logprobs: top, ...token }) => ({ ...read(token), top: (top ?? []).map(read) }));
}

/** Tokens as they are to be shown: those that are only a piece of a character become one, with `pieces`. */
export function joinTokens(tokens) {
  const joined = [];
  let open = null;
  for (const token of tokens) {
    open = open ? join(open, token) : token;
    if (open.bytes && !isWhole(open.bytes) && isBeginning(open.bytes)) continue;
    joined.push(open);
    open = null;
  }
  if (open) joined.push(open);
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
  if (isWhole(bytes)) return { ...both, text: decoder.decode(new Uint8Array(bytes)) };
  return { ...both, text: nameOf(bytes), bytes };
}

function isWhole(bytes) {
  try {
    decoder.decode(new Uint8Array(bytes));
    return true;
  } catch {
    return false;
  }
}

/** Whether more bytes may make characters of it. */
function isBeginning(bytes) {
  const end = bytes.findLastIndex((byte) => byte >= 0xc0);
  if (end < 0 || bytes.length - end > 3) return false;
  return bytes.length - end < lengthOf(bytes[end]) && isWhole(bytes.slice(0, end));
}

function lengthOf(first) {
  if (first >= 0xf0) return 4;
  return first >= 0xe0 ? 3 : 2;
}

function nameOf(bytes) {
  return bytes.map((byte) => `‹${byte.toString(16).padStart(2, "0").toUpperCase()}›`).join("");
}
