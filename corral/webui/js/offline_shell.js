// Starts the service worker, with which the page opens while the server cannot be reached.

const WORKER = new URL("../offline.js", import.meta.url);

/** `version`: of the server; another one replaces all that is kept. */
export async function keepShell(version) {
  if (!navigator.serviceWorker) return; // the page came without TLS
  WORKER.searchParams.set("version", version);
  const registration = await navigator.serviceWorker.register(WORKER);
  if (!registration) return; // the browser does not allow it
  const worker = registration.installing ?? registration.waiting ?? registration.active;
  const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
  worker.postMessage([location.origin + location.pathname, ...loaded]);
}
