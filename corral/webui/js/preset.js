// Settings under a name: some are given, others are the user's own and stored in this browser.

import { t } from "./more_text.js";

const PRESETS = "corral.presets";
const GIVEN_PRESETS = {
  [t("preset.server")]: {},
  [t("preset.precise")]: { temperature: 0.1, top_p: 0.9 },
  [t("preset.creative")]: { temperature: 1.2, min_p: 0.1, top_k: 0 },
};

/** Returns all presets by name, the user's own last. */
export function presets() {
  return { ...GIVEN_PRESETS, ...ownPresets() };
}

export function isOwnPreset(name) {
  return Object.hasOwn(ownPresets(), name);
}

/** Stores settings under a name, or deletes the name without settings. */
export function savePreset(name, settings) {
  const { [name]: _, ...others } = ownPresets();
  localStorage.setItem(PRESETS, JSON.stringify(settings ? { ...others, [name]: settings } : others));
}

function ownPresets() {
  try {
    return JSON.parse(localStorage.getItem(PRESETS)) ?? {};
  } catch {
    return {};
  }
}
