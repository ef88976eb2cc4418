// Formats numbers for users.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NONE = "–";

export const SOURCES = {
  none: "evaluated",
  own: "same slot",
  slot: "another slot",
  ram: "memory",
  disk: "disk",
};

export function count(n) {
  return n === null || n === undefined ? NONE : NUMBER.format(n);
}

/** Formats briefly, for tiles and bars. */
export function about(n) {
  return n < 10_000 ? count(n) : SHORT.format(n);
}

/** Formats for an axis, as short as possible. */
export function tick(n) {
  return n < 10 ? `${Number(n.toFixed(1))}` : about(n);
}

export function rate(n) {
  if (n === null || n === undefined) return NONE;
  return n > 0 && n < 100 ? n.toFixed(1) : about(n);
}

export function ms(n) {
  if (n === null || n === undefined) return NONE;
  if (n === 0) return "0 ms";
  if (n < 10) return `${n.toFixed(1)} ms`;
  if (n < 1000) return `${Math.round(n)} ms`;
  return n < 100_000 ? `${(n / 1000).toFixed(n < 10_000 ? 2 : 1)} s` : duration(n);
}

export function tickMs(n) {
  const [value, unit] = n < 1000 ? [n, "ms"] : [n / 1000, "s"];
  return n === 0 ? "0" : `${Number(value.toPrecision(3))} ${unit}`;
}

/** Formats longer durations: 45 s, 3 min, 2 h. */
export function duration(n) {
  const s = Math.max(0, Math.round(n / 1000));
  if (s < 100) return `${s} s`;
  if (s < 100 * 60) return `${Math.round(s / 60)} min`;
  return s < 48 * 3600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

export function clock(moment) {
  return new Date(moment).toLocaleTimeString("en", { hourCycle: "h23" });
}

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} GiB`;
}

/** Shortens an id. */
export function shortId(id) {
  return id.length > 10 ? `${id.slice(0, 8)}…` : id || "server";
}

/** Names the source of a cached prefix. */
export function source({ source, from_slot }) {
  return source === "slot" && from_slot !== null ? `slot ${from_slot}` : SOURCES[source];
}
