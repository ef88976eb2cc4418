// The small part of Preact that our views are made of: elements as template literals, and hooks.

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
