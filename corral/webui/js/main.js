import { html, render } from "./html.js";
import { ChatApp } from "./chat_app.js";
import { applyTheme } from "./theme.js";
import { App } from "./view/app.js";
import { direction, language } from "./text.js";

applyTheme();
Object.assign(document.documentElement, { lang: language, dir: direction });
const app = new ChatApp();
render(html`<${App} app=${app} />`, document.getElementById("page"));
app.connect();
