// The part of Preact that the views use: elements as template literals, and hooks.

export {
  html,
  render,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "../vendor/preact.mjs";
