import { html, render } from "./html.js";
import { ChatApp } from "./chat_app.js";
import { applyTheme } from "./theme.js";
import { App } from "./view/app.js";
import { language } from "./text.js";

applyTheme();
document.documentElement.lang = language;
const app = new ChatApp();
render(html`<${App} app=${app} />`, document.getElementById("page"));
app.connect();
