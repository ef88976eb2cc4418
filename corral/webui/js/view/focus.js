// Moves the focus when something opens and closes.

import { useLayoutEffect, useRef } from "../html.js";

/** Returns the ref of a field that is focused when mounted. */
export function useFocus() {
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  return field;
}

/** Returns the focus to its previous place when something closes that contained it. */
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
