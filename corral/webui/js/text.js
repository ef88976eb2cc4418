// Texts of the pages in the language of the user: `../text/` has a file for each, and only that one is loaded. Modules that
// import this are evaluated once it is there.

const KEY = "corral.language";
const SOURCE = "en";
const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Names of the languages in themselves, by the name of their file, which is also their tag. */
export const LANGUAGES = {
  en: "English",
  de: "Deutsch",
  fr: "Français",
  es: "Español",
  "zh-Hans": "简体中文",
  ja: "日本語",
};

/** The language that was chosen here; empty: the browser's. */
export function chosenLanguage() {
  return localStorage.getItem(KEY) ?? "";
}

/** Loads the page again in another language. */
export function chooseLanguage(tag) {
  if (tag) localStorage.setItem(KEY, tag);
  else localStorage.removeItem(KEY);
  location.reload();
}

export let language = languageOf([chosenLanguage(), ...navigator.languages]);
/** None of them so far, but texts of a language that is written from right to left need nothing else. */
export const direction = /^(?:ar|fa|he|ps|ur)\b/.test(language) ? "rtl" : "ltr";

const texts = await load(language).catch(loadSource);
const plurals = new Intl.PluralRules(language);

/** Returns a text with its values; `n` among them chooses the plural form. */
export function t(key, values = {}) {
  return parts(key, values).join("");
}

/** Returns the parts of a text whose values may be elements. */
export function parts(key, values) {
  const found = texts[key] ?? key;
  const text = typeof found === "string" ? found : (found[plurals.select(values.n)] ?? found.other);
  return text.split(/\{(\w+)\}/).map((part, i) => (i % 2 ? shown(values[part]) : part));
}

/** Returns a number as the language writes it, with that many digits after the point. */
export function number(n, digits = 0) {
  return n.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function percent(share, digits = 0) {
  return t("unit.percent", { n: number(100 * share, digits) });
}

export function bytes(n) {
  const unit = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(1, n)) / 3));
  const value = n / 1000 ** unit;
  return `${number(value, unit && value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

export function seconds(ms, digits = 1) {
  return t("unit.s", { n: number(ms / 1000, digits) });
}

export function listed(items) {
  return new Intl.ListFormat(language).format(items);
}

function shown(value) {
  return typeof value === "number" ? number(value) : value;
}

/** Returns the first language that there is a file for. */
function languageOf(wanted) {
  for (const tag of wanted) {
    const [base] = tag.split("-");
    const found = Object.keys(LANGUAGES).find((each) => each === tag || each.split("-")[0] === base);
    if (found) return found;
  }
  return SOURCE;
}

/** Adds the texts of a folder, in the language of the page. */
export async function addTexts(folder) {
  const source = () => load(`${folder}/${SOURCE}`).catch(() => {});
  Object.assign(texts, await load(`${folder}/${language}`).catch(source));
}

async function load(tag) {
  const response = await fetch(new URL(`../text/${tag}.json`, import.meta.url));
  if (!response.ok) throw new Error(response.status);
  return response.json();
}

/** Keys instead of texts are better than no page. */
function loadSource() {
  language = SOURCE;
  return load(SOURCE).catch(() => ({}));
}
