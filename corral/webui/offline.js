// The service worker: keeps the files of the chat page, which opens with them while the server cannot be reached. Nothing of
// the API is kept or even handled. The network comes first, and each version of the server has a cache of its own, so that
// files of two versions are never mixed.

const SCOPE = new URL("./", location).pathname; // the folder of the page, under `--api-prefix`
const OWN = `corral ${SCOPE} `;
const CACHE = OWN + new URLSearchParams(location.search).get("version");
const SHELL =
  /^(?:|index\.html|(?:js|css|text)\/[\w./-]+|vendor\/[\w-]+\.mjs|icon[\w-]*\.(?:svg|png)|manifest\.webmanifest)$/;

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(begin()));
addEventListener("message", (event) => event.waitUntil(keepAll(event.data)));
addEventListener("fetch", (event) => {
  if (event.request.method === "GET" && isShell(event.request.url)) event.respondWith(load(event.request));
});

/** Deletes what other versions have kept. */
async function begin() {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(OWN) && name !== CACHE).map((name) => caches.delete(name)));
  await clients.claim();
}

/** Keeps what the page has loaded before it had a service worker. `urls`: all that it has loaded. */
async function keepAll(urls) {
  const cache = await caches.open(CACHE);
  const missing = urls.filter(isShell).map(async (url) => (await cache.match(plain(url))) || keep(url, await fetch(url)));
  await Promise.allSettled(missing);
}

async function load(request) {
  try {
    const response = await fetch(request);
    keep(request.url, response.clone()).catch(() => {}); // without room it is not kept
    return response;
  } catch (error) {
    const kept = await (await caches.open(CACHE)).match(plain(request.url), { ignoreVary: true });
    if (kept) return kept;
    throw error;
  }
}

async function keep(url, response) {
  if (response.ok) await (await caches.open(CACHE)).put(plain(url), response);
}

function isShell(url) {
  const { origin, pathname } = new URL(url);
  return origin === location.origin && pathname.startsWith(SCOPE) && SHELL.test(pathname.slice(SCOPE.length));
}

/** The address without what follows the path. */
function plain(url) {
  const { origin, pathname } = new URL(url);
  return origin + pathname;
}
