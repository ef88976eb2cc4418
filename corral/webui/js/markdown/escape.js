const NAMES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** Text as HTML that says the same. */
export function escape(text) {
  return text.replace(/[&<>"']/g, (character) => NAMES[character]);
}
