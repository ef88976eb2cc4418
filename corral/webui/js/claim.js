// Tracks with browser locks which chats have a running answer in some tab.

/** Locks a chat until the returned function is called or the tab is closed. */
export async function claim(id) {
  if (!navigator.locks) return () => {};
  let release;
  const held = new Promise((resolve) => (release = resolve));
  await new Promise((granted) => {
    navigator.locks.request(name(id), { mode: "shared" }, () => {
      granted();
      return held;
    });
  });
  return release;
}

export async function isClaimed(id) {
  const { held } = (await navigator.locks?.query()) ?? { held: [] };
  return held.some((lock) => lock.name === name(id));
}

function name(id) {
  return `corral.chat.${id}`;
}
