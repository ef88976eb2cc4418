// Files dropped anywhere on the page, which the browser would otherwise open instead of the page.

import { useEffect, useRef, useState } from "../html.js";
import { filesOf, hasFiles } from "../attachment.js";

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
