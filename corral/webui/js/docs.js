// The API documentation, rendered from /openapi.json.

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  document.documentElement.classList.toggle("dark-mode", prefersDark.matches);
}

prefersDark.addEventListener("change", applyTheme);
applyTheme();

window.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // it would contact another host
});
