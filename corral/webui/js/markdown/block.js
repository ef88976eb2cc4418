// The blocks of a growing text. Blocks that can no longer change are not parsed again.

import { readBlocks } from "./syntax.js";

const SILENT = new Set(["space", "def"]);

export class Blocks {
  #settledText = "";
  #settled = [];
  #settledLinks = {};
  #names = "{}"; // link definitions that the settled blocks were parsed with

  /** Returns all blocks as tokens, with `key`: equal keys render equally. */
  read(text) {
    if (!text.startsWith(this.#settledText)) this.#forget();
    let { rest, links } = this.#readRest(text);
    const names = JSON.stringify(links);
    if (names !== this.#names) {
      // Earlier blocks may reference a link defined here.
      this.#forget();
      ({ rest, links } = this.#readRest(text));
      this.#names = names;
    }
    const all = [...this.#settled, ...rest];
    this.#settle(text, rest);
    const shown = all.filter(({ type }) => !SILENT.has(type));
    for (const block of shown) block.key ??= `${block.type} ${block.raw.includes("[") ? names : ""} ${block.raw}`;
    return shown;
  }

  #readRest(text) {
    const links = { ...this.#settledLinks };
    return { rest: readBlocks(text.slice(this.#settledText.length), links), links };
  }

  /** Up to the last block that has an empty line before it and a whole line of its own: blocks end at empty
   * lines, and those that reach over them do so by the next line. */
  #settle(text, rest) {
    let at = this.#settledText.length;
    let nSettled = 0;
    let end = at;
    for (const [i, { type, raw }] of rest.entries()) {
      if (!text.startsWith(raw, at)) break; // a block was left out
      const isApart = /\n[ \t]*\n$/.test(text.slice(Math.max(0, at - 100), at));
      if (type !== "space" && isApart && text.indexOf("\n", at) >= 0) [nSettled, end] = [i, at];
      at += raw.length;
    }
    const part = text.slice(this.#settledText.length, end);
    if (part.includes("]:")) readBlocks(part, this.#settledLinks);
    this.#settled = this.#settled.concat(rest.slice(0, nSettled));
    this.#settledText = text.slice(0, end);
  }

  #forget() {
    this.#settledText = "";
    this.#settled = [];
    this.#settledLinks = {};
  }
}
