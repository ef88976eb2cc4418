// Copies text, also if the browser has no clipboard API because the page came without TLS.

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(document.createElement("textarea"), { value: text, className: "unseen" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}
