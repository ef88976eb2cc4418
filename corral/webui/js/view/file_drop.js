// Files dropped anywhere on the page, which the browser would otherwise open instead of the page.

import { useEffect, useRef, useState } from "../html.js";

/** Whether pasted or dragged data is files. A copied image with text counts as text. */
export function hasFiles({ clipboardData, dataTransfer }) {
  const types = (clipboardData ?? dataTransfer)?.types ?? [];
  return types.includes("Files") && !(clipboardData && types.includes("text/plain"));
}

export function filesOf({ clipboardData, dataTransfer }) {
  return [...(clipboardData ?? dataTransfer).files];
}

/** Returns whether files are dragged over the page; `onFiles` gets dropped ones. */
export function useFileDrop(onFiles) {
  const [isOver, setOver] = useState(false);
  const latest = useRef(onFiles);
  latest.current = onFiles;
  useEffect(() => {
    const listeners = {
      dragover: (event) => take(event, () => setOver(true)),
      dragleave: ({ relatedTarget }) => !relatedTarget && setOver(false), // otherwise it is still over the page
      drop: (event) => take(event, () => (setOver(false), latest.current(filesOf(event)))),
    };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) removeEventListener(name, listener);
    };
  }, []);
  return isOver;
}

/** Anything but files, such as text for a message box, is left to the browser. */
function take(event, action) {
  if (!hasFiles(event)) return;
  event.preventDefault();
  action();
}
