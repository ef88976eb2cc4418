/** Formats JSON; anything else, also incomplete JSON, is returned as it is. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
