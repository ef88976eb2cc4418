// Models in words.

import { progressText } from "../answer.js";
import { number, t } from "../more_text.js";

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function modelText({ id, size, status }) {
  return [id, size && sizeText(size), progressText({ value: status.failed ? "failed" : status.value })].filter(Boolean).join(" · ");
}

export function sizeText(n) {
  const unit = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(1, n)) / 3));
  const value = n / 1000 ** unit;
  return `${number(value, unit && value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

/** The state of a model, with what is left to wait for. */
export function statusText(status) {
  if (status.failed) return t("models.failedBecause", { reason: status.reason ?? t("models.seeLog") });
  return progressText(status);
}
