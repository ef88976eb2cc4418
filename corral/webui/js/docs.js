// The API to read and try: all that it shows is in /openapi.json.

window.SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null, // it would ask another host
});
