// Modal dialogs.

import { useEffect, useRef } from "../html.js";

/** Returns the ref of a `dialog` that is open while mounted; the focus returns afterwards. */
export function useModal() {
  const dialog = useRef(null);
  useEffect(() => {
    const element = dialog.current;
    element.showModal();
    return () => element.close();
  }, []);
  return dialog;
}

export function isModalOpen() {
  return document.querySelector("dialog[open]") !== null;
}
