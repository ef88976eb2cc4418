// Copies text, also if the browser refuses the clipboard API, or has none because the page came without TLS.

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyFromArea(text);
  }
}

function copyFromArea(text) {
  const area = Object.assign(document.createElement("textarea"), { value: text, className: "unseen" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
