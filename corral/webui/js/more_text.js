// Texts that only parts which are loaded on demand need. Modules that import this are evaluated once they are there.

import { addTexts } from "./text.js";

export * from "./text.js";

await addTexts("more");
