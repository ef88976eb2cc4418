// Light, dark or system theme; stored in this browser.

const KEY = "corral.theme";
const THEMES = ["", "light", "dark"];

export function applyTheme(theme = localStorage.getItem(KEY) ?? "") {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

export function nextTheme() {
  const current = THEMES.indexOf(localStorage.getItem(KEY) ?? "");
  const theme = THEMES[(current + 1) % THEMES.length];
  localStorage.setItem(KEY, theme);
  applyTheme(theme);
}
