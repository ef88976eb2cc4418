// Icons of buttons; the label of the button names the action.

import { html } from "../html.js";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  search: "M10.5 17a6.5 6.5 0 1 1 0-13 6.5 6.5 0 0 1 0 13zM20 20l-4.8-4.8",
  menu: "M4 6h16M4 12h16M4 18h16",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  send: "M12 19V5M6 11l6-6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  stop: "M7 7h10v10H7z",
  pause: "M8 6v12M16 6v12",
  fork: "M12 21v-8M12 13L6 7V3M12 13l6-6V3",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 13l4 4L19 7",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  go: "M6 5l12 7-12 7z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  close: "M6 6l12 12M18 6L6 18",
  chart: "M4 20V4M4 20h16M8 16v-5M12 16V8M16 16v-8",
  tokens: "M4 6h6v5H4zM13 6h7v5h-7zM4 14h9v5H4zM16 14h4v5h-4z",
  tool: "M14 7a4 4 0 0 0-5.3 5L4 16.7 7.3 20l4.7-4.7A4 4 0 0 0 17 10l-2.5 2.5-3-3z",
  file: "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.3 8.2a1.6 1.6 0 0 1-2.3-2.3L15 7",
  mic: "M12 15a3 3 0 0 1-3-3V6a3 3 0 0 1 6 0v6a3 3 0 0 1-3 3zM6 11v1a6 6 0 0 0 12 0v-1M12 18v3",
  book: "M4 5h6a2 2 0 0 1 2 2v13a2 2 0 0 0-2-2H4zM20 5h-6a2 2 0 0 0-2 2v13a2 2 0 0 1 2-2h6z",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  folder: "M3 6h6l2 2h10v11H3z",
  share: "M12 15V4M8 8l4-4 4 4M5 12v8h14v-8",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  eye: "M2.5 12s3.5-6 9.5-6 9.5 6 9.5 6-3.5 6-9.5 6-9.5-6-9.5-6zM12 14.5a2.5 2.5 0 1 1 0-5 2.5 2.5 0 0 1 0 5z",
  key: "M8.5 19a4.5 4.5 0 1 1 3.7-7L20 4.3M16 8.5l3 3",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** A button with only an icon; `label`: its action; `badge`: a number at its corner. */
export function IconButton({ icon, label, onClick, disabled = false, pressed, badge, ...more }) {
  return html`<button
    type="button"
    class="plain icon-button"
    aria-label=${label}
    title=${label}
    aria-pressed=${pressed}
    disabled=${disabled}
    onClick=${onClick}
    ...${more}
  >
    <${Icon} name=${icon} />${badge && html`<span class="badge" aria-hidden="true">${badge}</span>`}
  </button>`;
}

/** A button with an icon and its label. */
export function TextButton({ icon, label, onClick, disabled = false, pressed }) {
  return html`<button type="button" class="plain text-button" aria-label=${label} aria-pressed=${pressed} disabled=${disabled} onClick=${onClick}>
    <${Icon} name=${icon} /><span class="label">${label}</span>
  </button>`;
}
