// Tools of the page itself: they read nothing and change nothing.

import { evaluate, shown } from "./calculator.js";
import { t } from "../more_text.js";

const TEXT = { type: "string" };

export const BUILTIN = [
  {
    name: "calculator",
    title: t("tool.calculator"),
    about: t("tool.calculator.about"),
    description: "Evaluates an arithmetic expression such as (2 + 3) * sqrt(16) / 7 ^ 2.",
    parameters: { type: "object", properties: { expression: TEXT }, required: ["expression"], additionalProperties: false },
    run: async ({ expression }) => shown(evaluate(expression)),
  },
  {
    name: "current_date",
    title: t("tool.date"),
    about: t("tool.date.about"),
    description: "Returns the current date and time, in the user's time zone or in an IANA time zone such as Asia/Tokyo.",
    parameters: { type: "object", properties: { time_zone: TEXT }, additionalProperties: false },
    run: async ({ time_zone: timeZone }) => dateIn(timeZone || undefined),
  },
];

function dateIn(timeZone) {
  const options = { dateStyle: "full", timeStyle: "long", timeZone };
  try {
    return `${new Date().toLocaleString("en-GB", options)} (${new Date().toISOString()})`;
  } catch {
    throw new Error(`'${timeZone}' is not a time zone.`);
  }
}
