// Where the focus goes when something opens, and when it closes again.

import { useLayoutEffect, useRef } from "../html.js";

/** The ref of a field that is written in as soon as it is on the page. */
export function useFocus() {
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  return field;
}

/** When something that is open has closed, and the focus was in there, the focus goes back to where it was. */
export function useFocusBack(open) {
  useLayoutEffect(() => {
    if (!open) return undefined;
    const before = document.activeElement;
    return () => {
      const now = document.activeElement;
      if (now === document.body || !now.checkVisibility()) before.focus();
    };
  }, [open]);
}
