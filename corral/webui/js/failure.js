// Explains to the user why there is no answer, and what to do about it.

/** Returns `error` and `remedies` for a failed request. Remedies: "shorten" the message, go "back" to an earlier one,
 * start a "new" chat, try "again". */
export function failureOf(error) {
  if (error.type === "exceed_context_size_error") {
    return { error: tooLong(error.details), remedies: ["shorten", "back", "new"] };
  }
  if (error.status === 413) {
    return { error: "This conversation with its files exceeds the server's size limit.", remedies: ["shorten", "back", "new"] };
  }
  if (error.status !== 501) return { error: error.message, remedies: ["again"] };
  if (!error.field.startsWith("messages")) return { error: error.message, remedies: [] };
  return { error: "This conversation contains an image or audio, which this model does not support.", remedies: ["back", "new"] };
}

function tooLong({ n_prompt_tokens: nPrompt, n_ctx: nCtx }) {
  const sizes = nPrompt && nCtx ? `: it has about ${count(nPrompt)} tokens, ${count(nCtx)} fit` : "";
  return `This conversation is too long for the model${sizes}.`;
}

function count(n) {
  return n.toLocaleString("en");
}
