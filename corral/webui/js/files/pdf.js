// Text and pages of PDF files. The library parses them in a worker, which is terminated after a time limit.

import * as library from "../../vendor/pdfjs/pdf.mjs";
import { MAX_IMAGES } from "../attachment.js";
import { t } from "../more_text.js";

const PATIENCE_MS = 60_000;
const MAX_PAGES = 2000;
const MAX_CHARS = 10_000_000;
const MAX_SIDE = 1536; // pixels of a page
const MAX_IMAGE_PIXELS = 50_000_000;
const QUALITY = 0.85;

/** Returns { text, nPages }. Throws an Error with the reason. */
export function readPdf(file, name) {
  return withDocument(file, name, async (document) => {
    const nPages = Math.min(document.numPages, MAX_PAGES);
    const pages = [];
    let nChars = 0;
    for (let i = 1; i <= nPages && nChars < MAX_CHARS; i += 1) {
      pages.push(await textOf(await document.getPage(i)));
      nChars += pages.at(-1).length;
    }
    return { text: pages.join("\n\n").slice(0, MAX_CHARS).trim(), nPages: document.numPages };
  });
}

/** Returns the pages as [{ name, url, bytes }]; the message has `nBefore` images already. */
export function drawPages(file, name, nBefore = 0) {
  return withDocument(file, name, async (document) => {
    const n = document.numPages;
    if (n + nBefore > MAX_IMAGES) {
      throw refusal(t("file.tooManyPages", { name, pages: n, n: MAX_IMAGES }));
    }
    const images = [];
    for (let i = 1; i <= n; i += 1) images.push(await draw(await document.getPage(i), t("file.page", { name, n: i })));
    return images;
  });
}

async function withDocument(file, name, work) {
  const data = new Uint8Array(await file.arrayBuffer());
  const thread = new Worker(new URL("../../vendor/pdfjs/pdf.worker.mjs", import.meta.url), { type: "module" });
  const worker = new library.PDFWorker({ port: thread });
  let timer;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(refusal(t("file.tooSlow", { name }))), PATIENCE_MS);
  });
  try {
    return await Promise.race([timeout, opened(data, worker, name).then(work)]);
  } catch (error) {
    throw error.isRefusal ? error : new Error(t("file.notReadablePdf", { name })); // the library names no file
  } finally {
    clearTimeout(timer);
    worker.destroy();
    thread.terminate();
  }
}

async function opened(data, worker, name) {
  const options = {
    data,
    worker,
    useWasm: false, // the page's policy allows no WebAssembly
    useWorkerFetch: false,
    enableXfa: false,
    isEvalSupported: false,
    maxImageSize: MAX_IMAGE_PIXELS,
    verbosity: library.VerbosityLevel.ERRORS,
  };
  try {
    return await library.getDocument(options).promise;
  } catch (error) {
    throw error.name === "PasswordException" ? refusal(t("file.password", { name })) : error;
  }
}

function refusal(message) {
  return Object.assign(new Error(message), { isRefusal: true });
}

async function textOf(page) {
  const { items } = await page.getTextContent();
  page.cleanup();
  return items.map(({ str = "", hasEOL }) => (hasEOL ? `${str}\n` : str)).join("");
}

async function draw(page, name) {
  const { width, height } = page.getViewport({ scale: 1 });
  const viewport = page.getViewport({ scale: Math.min(4, MAX_SIDE / Math.max(width, height)) });
  const canvas = Object.assign(document.createElement("canvas"), {
    width: Math.max(1, Math.floor(viewport.width)),
    height: Math.max(1, Math.floor(viewport.height)),
  });
  await page.render({ canvas, viewport, background: "white" }).promise;
  const url = canvas.toDataURL("image/jpeg", QUALITY);
  page.cleanup();
  return { name, url, bytes: Math.round(url.length * 0.75) };
}
