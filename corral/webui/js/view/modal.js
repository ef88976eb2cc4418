// Dialogs that keep the rest of the page waiting.

import { useEffect, useRef } from "../html.js";

/** The ref of a `dialog` that is open for as long as it is on the page; then the focus is again where it was. */
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
