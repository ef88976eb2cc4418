// What tests do with Markdown in the page; evaluated there. `play` is theirs.

(async () => {
  const { renderMarkdown } = await import("/js/markdown.js");
  const { safeFragments } = await import("/js/markdown/safe.js");
  const TAGS = new Set(
    ("P BR HR H1 H2 H3 H4 H5 H6 BLOCKQUOTE UL OL LI PRE CODE EM STRONG DEL A IMG SPAN TABLE THEAD TBODY TR TH TD " +
      "DIV BUTTON SECTION").split(" "),
  );
  const ATTRIBUTES = /^(?:href|title|src|alt|align|start|class|rel|target|tabindex|role|aria-label|type|dir)$/;

  for (const name of ["base", "markdown"]) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: `/css/${name}.css` }));
  }

  const fresh = () => {
    document.querySelectorAll("body > .markdown").forEach((node) => node.remove());
    const element = document.createElement("div");
    element.className = "markdown";
    document.body.append(element);
    return element;
  };

  /** What should not be there, in words. */
  const faults = (element) => {
    const found = [];
    for (const node of element.querySelectorAll("*")) {
      const isDrawn = node.closest(".katex");
      const attributes = [...node.attributes].map(({ name }) => name);
      if (isDrawn ? /^(?:a|img|script|iframe|image|use|style|link)$/i.test(node.localName) : !TAGS.has(node.tagName)) {
        found.push(`element ${node.localName}`);
      }
      for (const name of attributes) {
        if (isDrawn ? /^on|href|src|^id$/i.test(name) : !ATTRIBUTES.test(name)) found.push(`attribute ${name}`);
      }
      if (node.hasAttribute("href") && !isDrawn && !/^(?:https?|mailto):/.test(node.getAttribute("href"))) {
        found.push(`link ${node.getAttribute("href")}`);
      }
      if (node.hasAttribute("src") && !/^data:image\/(?:png|jpeg|gif|webp|avif);/.test(node.getAttribute("src"))) {
        found.push(`picture ${node.getAttribute("src")}`);
      }
    }
    return found;
  };

  const click = (element) => {
    for (const node of element.querySelectorAll("*")) {
      for (const type of ["mouseover", "focus", "load", "error", "toggle"]) node.dispatchEvent(new Event(type));
      if (!node.closest("a, button")) node.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    }
  };

  window.hacked = false;
  window.hack = () => {
    window.hacked = true;
  };

  window.play = {
    async show(text) {
      const element = fresh();
      await renderMarkdown(text, element);
      return element.innerHTML;
    },

    async writing(text) {
      const element = fresh();
      await renderMarkdown(text, element, { isWriting: true });
      return element.innerHTML;
    },

    async stream(text, cuts) {
      const element = fresh();
      for (const cut of cuts) renderMarkdown(text.slice(0, cut), element, { isWriting: true });
      await renderMarkdown(text, element);
      return element.innerHTML;
    },

    /** Whole, then as a stream, looking at it all the time. */
    async attack(text) {
      window.hacked = false;
      const bad = new Set();
      const element = fresh();
      await renderMarkdown(text, element);
      const whole = element.innerHTML;
      faults(element).forEach((fault) => bad.add(fault));
      click(element);
      const other = fresh();
      for (let i = 1; i <= text.length; i += 1) {
        await renderMarkdown(text.slice(0, i), other, { isWriting: true });
        faults(other).forEach((fault) => bad.add(`${fault} after ${i}`));
      }
      await renderMarkdown(text, other);
      const isSame = other.innerHTML === whole; // before a click marks a formula as copied
      click(other);
      await new Promise((resolve) => setTimeout(resolve));
      return {
        bad: [...bad],
        hacked: window.hacked || Boolean(document.querySelector("body > .markdown script")),
        text: other.textContent,
        isSame,
      };
    },

    /** What is left of HTML that has come as far as to the gate. */
    gate(html) {
      const element = fresh();
      try {
        element.append(...safeFragments([html]));
      } catch (error) {
        return [error.message === "a piece became more than one" ? "refused" : error.message];
      }
      click(element);
      return faults(element);
    },

    faults(html) {
      const element = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html").body.firstChild;
      return faults(element);
    },

    /** Whether what attacks call would leave its mark. */
    canHack() {
      window.hack();
      const was = window.hacked;
      window.hacked = false;
      return was;
    },

    async keeps(text) {
      const element = fresh();
      await renderMarkdown(text.slice(0, -1), element, { isWriting: true });
      const before = [...element.children];
      await renderMarkdown(`${text}\n\nAnd on it goes\n\n\`\`\`js\nlet a`, element, { isWriting: true });
      const kept = before.filter((node, i) => element.children[i] === node).length;
      const code = element.lastElementChild;
      await renderMarkdown(`${text}\n\nAnd on it goes\n\n\`\`\`js\nlet a = 1;\n`, element, { isWriting: true });
      return [before.length, kept, code === element.lastElementChild];
    },

    async time(text) {
      const element = fresh();
      let begin = performance.now();
      await renderMarkdown(text, element);
      element.getBoundingClientRect();
      const once = performance.now() - begin;
      begin = performance.now();
      await renderMarkdown(`${text}\nmore`, element, { isWriting: true });
      return [Math.max(once, performance.now() - begin), element.textContent];
    },

    /** How many characters are read for each new piece. */
    async reads(text) {
      const { Lexer } = await import("/vendor/marked.mjs");
      const element = fresh();
      const { blockTokens } = Lexer.prototype;
      const counts = [];
      Lexer.prototype.blockTokens = function count(src, ...rest) {
        counts[counts.length - 1] += src.length;
        return blockTokens.call(this, src, ...rest);
      };
      for (let end = 20; end <= text.length; end += 20) {
        counts.push(0);
        await renderMarkdown(text.slice(0, end), element, { isWriting: true });
      }
      Lexer.prototype.blockTokens = blockTokens;
      return counts;
    },
  };
})();
