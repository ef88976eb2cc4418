// Explains to the user why there is no answer, and what to do about it.

import { t } from "./text.js";

/** Returns `error` and `remedies` for a failed request. Remedies: "shorten" the message, go "back" to an earlier one,
 * start a "new" chat, try "again". */
export function failureOf(error) {
  if (error.type === "exceed_context_size_error") {
    return { error: tooLong(error.details), remedies: ["shorten", "back", "new"] };
  }
  if (error.status === 413) {
    return { error: t("fail.tooBig"), remedies: ["shorten", "back", "new"] };
  }
  if (error.status !== 501) return { error: error.message, remedies: ["again"] };
  if (!error.field.startsWith("messages")) return { error: error.message, remedies: [] };
  return { error: t("fail.noMedia"), remedies: ["back", "new"] };
}

/** Returns the remedies for an answer that ended because the context of `nCtx` tokens is full. */
export function cutOf({ finish, timings }, nCtx) {
  const nUsed = timings ? timings.cache_n + timings.prompt_n + timings.predicted_n : 0;
  return finish === "length" && nCtx && nUsed >= nCtx ? { remedies: ["back", "new"] } : {};
}

function tooLong({ n_prompt_tokens: nPrompt, n_ctx: nCtx }) {
  return nPrompt && nCtx ? t("fail.tooLongBy", { nPrompt, nCtx }) : t("fail.tooLong");
}
