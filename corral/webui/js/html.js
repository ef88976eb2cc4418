// The part of Preact that the views use: elements as template literals, and hooks.

import { h } from "../vendor/preact.mjs";
import htm from "../vendor/htm.mjs";

export { render } from "../vendor/preact.mjs";
export { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../vendor/preact-hooks.mjs";

export const html = htm.bind(h);
