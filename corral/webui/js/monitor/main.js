import { html, render } from "../html.js";
import { applyTheme } from "../theme.js";
import { App } from "./app.js";
import { Feed } from "./feed.js";

applyTheme();
const feed = new Feed();
render(html`<${App} feed=${feed} />`, document.getElementById("page"));
feed.connect();
