import { html, render } from "./html.js";
import { Room } from "./room.js";
import { applyTheme } from "./theme.js";
import { App } from "./view/app.js";

applyTheme();
const room = new Room();
render(html`<${App} room=${room} />`, document.getElementById("page"));
room.connect();
