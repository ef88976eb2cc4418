// Files that are dropped, wherever on the page: a browser would leave the page to show them.

import { useEffect, useRef, useState } from "../html.js";
import { filesOf, hasFiles } from "../attachment.js";

/** Whether files are over the page; `onFiles` gets those that are dropped. */
export function useFileDrop(onFiles) {
  const [isOver, setOver] = useState(false);
  const latest = useRef(onFiles);
  latest.current = onFiles;
  useEffect(() => {
    const listeners = {
      dragover: (event) => take(event, () => setOver(true)),
      dragleave: ({ relatedTarget }) => !relatedTarget && setOver(false), // else it is still over the page
      drop: (event) => take(event, () => (setOver(false), latest.current(filesOf(event)))),
    };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) removeEventListener(name, listener);
    };
  }, []);
  return isOver;
}

/** What is not files, as text for a message box, is left to the browser. */
function take(event, action) {
  if (!hasFiles(event)) return;
  event.preventDefault();
  action();
}
