// Models in words.

import { progressText } from "../answer.js";
import { bytes, t } from "../more_text.js";

export function modelText({ id, size, status }) {
  return [id, size && bytes(size), progressText({ value: status.failed ? "failed" : status.value })].filter(Boolean).join(" · ");
}

/** The state of a model, with what is left to wait for. */
export function statusText(status) {
  if (status.failed) return t("models.failedBecause", { reason: status.reason ?? t("models.seeLog") });
  return progressText(status);
}
