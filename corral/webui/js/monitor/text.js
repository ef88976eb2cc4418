// The texts of the monitor, which the chat page does not load. Modules that import this are evaluated once they are there.

import { addTexts } from "../text.js";

export { direction, language, listed, number, parts, percent, t } from "../text.js";

await addTexts("monitor");
