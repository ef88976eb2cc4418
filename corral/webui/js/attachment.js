// Images for a message: chosen, pasted or dropped, then checked and resized.

import { t } from "./more_text.js";

export const MAX_IMAGES = 8; // of a message
const MAX_FILE_BYTES = 50_000_000;
const MAX_SENT_BYTES = 4_000_000;
const MAX_SIDE = 2048; // pixels
const MAX_PIXELS = 100_000_000;
const SENT_AS_THEY_ARE = new Set(["image/png", "image/jpeg", "image/webp"]);
const QUALITIES = [0.92, 0.8, 0.6];
const USABLE = t("file.imageFormats");

/** Returns [{ name, url, bytes }] with data URLs; the message has `nBefore` images already. Throws an Error with the
 * reason and the supported formats. */
export async function readImages(files, nBefore = 0) {
  check(files.length > 0, `${t("file.notFile")} ${USABLE}`);
  if (files.length + nBefore > MAX_IMAGES) throw new Error(t("file.maxImages", { n: MAX_IMAGES }));
  const images = [];
  for (const file of files) images.push(await readImage(file));
  return images;
}

async function readImage(file) {
  const name = file.name || t("file.image");
  check(file.type.startsWith("image/"), `${t("file.notImage", { name })} ${USABLE}`);
  check(file.type !== "image/svg+xml", `${t("file.drawingSvg", { name })} ${USABLE}`);
  check(file.size > 0, t("file.empty", { name }));
  check(file.size <= MAX_FILE_BYTES, t("file.tooLarge", { name, n: MAX_FILE_BYTES / 1e6 }));
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${t("file.notReadableImage", { name })} ${USABLE}`);
  });
  try {
    check(bitmap.width * bitmap.height <= MAX_PIXELS, t("file.tooManyPixels", { name, n: MAX_PIXELS / 1e6 }));
    const blob = (await canGoAsItIs(file, bitmap)) ? file : await encode(bitmap, file.type);
    return { name, url: await dataUrl(blob), bytes: blob.size };
  } finally {
    bitmap.close();
  }
}

async function canGoAsItIs(file, { width, height }) {
  if (!SENT_AS_THEY_ARE.has(file.type) || file.size > MAX_SENT_BYTES) return false;
  return Math.max(width, height) <= MAX_SIDE && !(await isAnimated(file));
}

/** PNG and WebP declare it near their beginning. */
async function isAnimated(file) {
  if (file.type === "image/jpeg") return false;
  const start = new TextDecoder("latin1").decode(await file.slice(0, 4096).arrayBuffer());
  return start.includes("acTL") || start.includes("ANIM");
}

/** Resizes an image to at most MAX_SIDE pixels; lossless if the original is and the result is small enough. */
async function encode(bitmap, type) {
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const width = Math.max(1, Math.round(bitmap.width * scale));
  const height = Math.max(1, Math.round(bitmap.height * scale));
  if (type !== "image/jpeg") {
    const blob = await draw(bitmap, width, height, "image/png");
    if (blob.size <= MAX_SENT_BYTES) return blob;
  }
  let blob = null;
  for (const quality of QUALITIES) {
    blob = await draw(bitmap, width, height, "image/jpeg", quality);
    if (blob.size <= MAX_SENT_BYTES) break;
  }
  return blob;
}

async function draw(bitmap, width, height, type, quality) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  if (type === "image/jpeg") {
    context.fillStyle = "white"; // under transparent pixels
    context.fillRect(0, 0, width, height);
  }
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, type, quality));
  check(blob, t("file.notResized"));
  return blob;
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error(t("file.notRead"))));
    reader.readAsDataURL(blob);
  });
}

function check(isRight, message) {
  if (!isRight) throw new Error(message);
}
