// Audio for a message: files and recordings. What the server cannot decode is converted to WAV by the browser.

import { t } from "../more_text.js";

const MAX_BYTES = 25_000_000;
const AS_THEY_ARE = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/flac": "flac" };
const RATE = 16_000; // samples per second of a converted file
const HEADER_BYTES = 44;
const SLICE_MS = 100;

/** Returns { name, url }. Throws an Error with the reason. */
export async function readAudio(file, name) {
  if (file.size > MAX_BYTES) throw new Error(t("file.tooLarge", { name, n: MAX_BYTES / 1e6 }));
  const type = AS_THEY_ARE[file.type.split(";")[0]];
  const bytes = new Uint8Array(await file.arrayBuffer());
  return { name, url: type ? dataUrl(bytes, type) : dataUrl(await converted(bytes, name), "wav") };
}

/** Starts to record; returns a function that stops and resolves to { name, url }. Throws an Error without a microphone. */
export async function record() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch {
    throw new Error(t("file.noMicrophone"));
  }
  const recorder = new MediaRecorder(stream);
  const chunks = [];
  recorder.addEventListener("dataavailable", ({ data }) => chunks.push(data));
  const ended = new Promise((resolve) => recorder.addEventListener("stop", resolve));
  const begun = new Promise((resolve) => recorder.addEventListener("dataavailable", resolve, { once: true }));
  recorder.start(SLICE_MS);
  await begun; // an empty recording cannot be decoded
  return async () => {
    recorder.stop();
    await ended;
    for (const track of stream.getTracks()) track.stop();
    const name = t("file.recording");
    return readAudio(new File(chunks, name, { type: recorder.mimeType }), name);
  };
}

/** Returns a WAV file with one channel. */
async function converted(bytes, name) {
  const context = new OfflineAudioContext(1, 1, RATE);
  let buffer;
  try {
    buffer = await context.decodeAudioData(bytes.buffer);
  } catch {
    throw new Error(t("file.notReadableAudio", { name }));
  }
  const mixer = new OfflineAudioContext(1, Math.max(1, Math.ceil(buffer.duration * RATE)), RATE);
  const source = Object.assign(mixer.createBufferSource(), { buffer });
  source.connect(mixer.destination);
  source.start();
  return wav((await mixer.startRendering()).getChannelData(0));
}

function wav(samples) {
  const view = new DataView(new ArrayBuffer(HEADER_BYTES + 2 * samples.length));
  const text = (at, value) => [...value].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  text(8, "WAVEfmt ");
  const fields = [[16, 16, 4], [20, 1, 2], [22, 1, 2], [24, RATE, 4], [28, 2 * RATE, 4], [32, 2, 2], [34, 16, 2]];
  for (const [at, value, size] of fields) size === 4 ? view.setUint32(at, value, true) : view.setUint16(at, value, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => view.setInt16(HEADER_BYTES + 2 * i, Math.max(-1, Math.min(1, sample)) * 0x7fff, true));
  return new Uint8Array(view.buffer);
}

function dataUrl(bytes, type) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return `data:audio/${type};base64,${btoa(text)}`;
}
