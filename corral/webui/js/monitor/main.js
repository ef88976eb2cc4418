import { html, render } from "../html.js";
import { ask } from "../api.js";
import { applyTheme } from "../theme.js";
import { App } from "./app.js";
import { Feed } from "./feed.js";

applyTheme();
const page = document.getElementById("page");
const { role } = await ask("/props").catch(() => ({}));
if (role === "router") {
  const { ManyApp } = await import("./many.js");
  render(html`<${ManyApp} />`, page);
} else {
  const feed = new Feed();
  render(html`<${App} feed=${feed} />`, page);
  feed.connect();
}
