// Formats numbers for users.

import { language, number, t } from "./text.js";

const SHORT = new Intl.NumberFormat(language, { notation: "compact", maximumFractionDigits: 1 });
const FINE = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
const PRECISE = new Intl.NumberFormat(language, { maximumSignificantDigits: 3 });
const NONE = "–";

export function count(n) {
  return n === null || n === undefined ? NONE : number(n);
}

/** Formats briefly, for tiles and bars. */
export function about(n) {
  return n < 10_000 ? count(n) : SHORT.format(n);
}

/** Formats for an axis, as short as possible. */
export function tick(n) {
  return n < 10 ? FINE.format(n) : about(n);
}

export function rate(n) {
  if (n === null || n === undefined) return NONE;
  return n > 0 && n < 100 ? number(n, 1) : about(n);
}

export function ms(n) {
  if (n === null || n === undefined) return NONE;
  if (n < 1000) return t("unit.ms", { n: number(n, n > 0 && n < 10 ? 1 : 0) });
  return n < 100_000 ? t("unit.s", { n: number(n / 1000, n < 10_000 ? 2 : 1) }) : duration(n);
}

/** Formats times for an axis. */
export function tickMs(n) {
  if (n === 0) return number(0);
  return n < 1000 ? t("axis.ms", { n: PRECISE.format(n) }) : t("axis.s", { n: PRECISE.format(n / 1000) });
}

/** Formats longer durations: 45 s, 3 min, 2 h. */
export function duration(n) {
  const s = Math.max(0, Math.round(n / 1000));
  if (s < 100) return t("unit.s", { n: s });
  if (s < 100 * 60) return t("unit.min", { n: Math.round(s / 60) });
  return s < 48 * 3600 ? t("unit.h", { n: Math.round(s / 3600) }) : t("unit.days", { n: Math.round(s / 86400) });
}

export function clock(moment) {
  return new Date(moment).toLocaleTimeString(language, { hourCycle: "h23" });
}

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return t(`unit.${unit}`, { n: number(n, n < 10 && unit !== "B" ? 1 : 0) });
    n /= 1024;
  }
  return t("unit.GiB", { n: number(n, 1) });
}

/** Shortens an id. */
export function shortId(id) {
  return id.length > 10 ? `${id.slice(0, 8)}…` : id || t("request.server");
}

/** Names the source of a cached prefix. */
export function source({ source, from_slot }) {
  return source === "slot" && from_slot !== null ? t("source.ofSlot", { id: from_slot }) : t(`source.${source}`);
}
