// Lines of tokens as they are wrapped on the page.

/** Returns the token nearest to `at` one line down (`step` 1) or up (-1); `at` itself if there is no line. */
export function nearestBelow(children, at, step) {
  const from = rectangle(children[at]);
  let best = at;
  let line = null;
  for (let i = at + step; i >= 0 && i < children.length; i += step) {
    const { left, top } = rectangle(children[i]);
    if (Math.abs(top - from.top) < 2) continue;
    line ??= top;
    if (Math.abs(top - line) >= 2) break;
    if (best === at || Math.abs(left - from.left) < Math.abs(rectangle(children[best]).left - from.left)) best = i;
  }
  return best;
}

/** The rectangle of its first line. */
function rectangle(element) {
  return element.getClientRects()[0] ?? element.getBoundingClientRect();
}
