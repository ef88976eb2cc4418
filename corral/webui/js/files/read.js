// Reads files for a message: images, audio, PDF, and everything that is text.

import { readImages } from "../attachment.js";
import { t } from "../more_text.js";

const MAX_FILES = 20; // of a message
const MAX_TEXT_BYTES = 10_000_000;
const MAX_PDF_BYTES = 50_000_000;
const BINARY = /[\0-\x08\x0e-\x1a\x1c-\x1f]/;
const AUDIO_NAMES = /\.(wav|mp3|flac|ogg|opus|m4a|aac|webm)$/i;

/** Returns { images, files, audio } to add to a message, which has `before` of each already. `sees` and `hears`: what the
 * model supports. Throws an Error that says which file cannot be used, and why. */
export async function readAll(given, before, { sees, hears }) {
  check(given.length > 0, t("file.notFile"));
  check(given.length + before.files <= MAX_FILES, t("file.maxFiles", { n: MAX_FILES }));
  const added = { images: [], files: [], audio: [] };
  for (const file of given) {
    check(file.size > 0, t("file.empty", { name: nameOf(file) }));
    await readOne(file, added, before, { sees, hears });
  }
  return added;
}

async function readOne(file, added, before, { sees, hears }) {
  const name = nameOf(file);
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    check(sees, t("file.seesNothing", { name }));
    added.images.push(...(await readImages([file], before.images + added.images.length)));
  } else if (isAudio(file)) {
    check(hears, t("file.hearsNothing", { name }));
    const { readAudio } = await import("./audio.js");
    added.audio.push(await readAudio(file, name));
  } else if (await isPdf(file)) {
    await addPdf(file, added, before, sees);
  } else {
    added.files.push({ name, text: await readText(file) });
  }
}

async function addPdf(file, added, before, sees) {
  const name = nameOf(file);
  check(file.size <= MAX_PDF_BYTES, t("file.tooLarge", { name, n: MAX_PDF_BYTES / 1e6 }));
  const { drawPages, readPdf } = await import("./pdf.js");
  const { text, nPages } = await readPdf(file, name);
  if (text.trim()) return added.files.push({ name, text, nPages, source: file });
  check(sees, t("file.noText", { name }));
  return added.images.push(...(await drawPages(file, name, before.images + added.images.length)));
}

/** Returns the text of a file in UTF-8, in UTF-16 with a byte order mark, or in Windows-1252. */
export async function readText(file) {
  const name = nameOf(file);
  check(file.size <= MAX_TEXT_BYTES, t("file.tooLarge", { name, n: MAX_TEXT_BYTES / 1e6 }));
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = decode(bytes).replace(/\r\n?/g, "\n");
  check(!BINARY.test(text), t("file.notText", { name }));
  return text;
}

function decode(bytes) {
  const isWide = (bytes[0] === 0xff && bytes[1] === 0xfe) || (bytes[0] === 0xfe && bytes[1] === 0xff);
  if (isWide) return new TextDecoder(bytes[0] === 0xff ? "utf-16le" : "utf-16be").decode(bytes);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

function isAudio(file) {
  return file.type.startsWith("audio/") || AUDIO_NAMES.test(file.name);
}

async function isPdf(file) {
  if (file.type === "application/pdf") return true;
  return (await file.slice(0, 5).text()) === "%PDF-";
}

function nameOf(file) {
  return file.name || t("file.theFile");
}

function check(isRight, message) {
  if (!isRight) throw new Error(message);
}
