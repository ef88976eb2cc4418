import "./policy.js";
import { html, render } from "./html.js";
import { ChatApp } from "./chat_app.js";
import { applyTheme } from "./theme.js";
import { App } from "./view/app.js";
import { direction, language } from "./text.js";

applyTheme();
Object.assign(document.documentElement, { lang: language, dir: direction });
const app = new ChatApp();
render(html`<${App} app=${app} />`, document.getElementById("page"));
const unwatch = app.subscribe(({ server, props }) => {
  if (server !== "ready") return;
  unwatch();
  import("./offline_shell.js").then(({ keepShell }) => keepShell(props.server_version)).catch(() => {}); // then it needs the server
});
app.connect();
