const NAMES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** Escapes text for HTML. */
export function escape(text) {
  return text.replace(/[&<>"']/g, (character) => NAMES[character]);
}
