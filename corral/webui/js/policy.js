// Lets only scripts of the page's own folders run: not, for example, files that clients have uploaded to the same server. The
// server's policy cannot name folders, because a proxy may serve them at another address; both policies must allow a script.

const FOLDER = new URL("..", import.meta.url).pathname; // of the page, under `--api-prefix` or a proxy's
const sources = ["js/", "vendor/", "offline.js"].map((name) => `${location.protocol}//*:*${FOLDER}${name}`);

const policy = document.createElement("meta");
policy.httpEquiv = "Content-Security-Policy";
policy.content = `script-src ${sources.join(" ")}`;
document.head.append(policy);
