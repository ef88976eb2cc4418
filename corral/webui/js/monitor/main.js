import "../policy.js";
import { html, render } from "../html.js";
import { ask } from "../api.js";
import { applyTheme } from "../theme.js";
import { App } from "./app.js";
import { Feed } from "./feed.js";
import { direction, language, t } from "./text.js";

applyTheme();
Object.assign(document.documentElement, { lang: language, dir: direction });
document.title = `${t("monitor.title")} · Corral`;
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
