// Evaluates arithmetic expressions with a parser of its own: nothing is ever run as code.

const MAX_CHARS = 1000;
const MAX_DEPTH = 100;
const TOKEN = /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|[-+*/%^(),]))/y;
const CONSTANTS = new Map([["pi", Math.PI], ["e", Math.E], ["tau", 2 * Math.PI]]);
const FUNCTIONS = new Map([
  ...["abs", "sqrt", "cbrt", "exp", "floor", "ceil", "round", "sign", "trunc", "min", "max", "hypot"].map(named),
  ...["sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "log2", "log10"].map(named),
  ["ln", Math.log],
  ["log", (value, base = 10) => (base === 10 ? Math.log10(value) : Math.log(value) / Math.log(base))],
  ["pow", Math.pow],
]);

/** Returns the value. Throws an Error that says what is wrong with the expression. */
export function evaluate(text) {
  if (typeof text !== "string") throw new Error("The expression must be a text.");
  if (text.length > MAX_CHARS) throw new Error(`The expression is longer than ${MAX_CHARS} characters.`);
  const parser = new Parser(tokensOf(text));
  const value = parser.sum();
  if (parser.next !== undefined) throw new Error(`Unexpected '${parser.next}'.`);
  return value;
}

/** Returns a number as text, without the noise of binary fractions. */
export function shown(value) {
  return String(Number(value.toPrecision(15)));
}

function named(name) {
  return [name, Math[name]];
}

function tokensOf(text) {
  const tokens = [];
  const trimmed = text.trimEnd();
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < trimmed.length) {
    const at = TOKEN.lastIndex;
    const found = TOKEN.exec(trimmed);
    if (!found) throw new Error(`Unexpected '${trimmed.slice(at).trim()[0]}'.`);
    tokens.push(found[1] !== undefined ? Number(found[1]) : (found[2] ?? found[3]));
  }
  return tokens;
}

/** Mutable: reads tokens from left to right; one method for each precedence. */
class Parser {
  #at = 0;
  #depth = 0;

  constructor(tokens) {
    this.tokens = tokens;
  }

  get next() {
    return this.tokens[this.#at];
  }

  sum() {
    this.#depth += 1;
    if (this.#depth > MAX_DEPTH) throw new Error("The expression is nested too deeply.");
    let value = this.#product();
    while (this.next === "+" || this.next === "-") {
      value = this.#take() === "+" ? value + this.#product() : value - this.#product();
    }
    this.#depth -= 1;
    return value;
  }

  #product() {
    let value = this.#signed();
    while (["*", "/", "%"].includes(this.next)) {
      const operator = this.#take();
      const right = this.#signed();
      value = operator === "*" ? value * right : operator === "/" ? value / right : value % right;
    }
    return value;
  }

  #signed() {
    let sign = 1;
    while (this.next === "-" || this.next === "+") sign *= this.#take() === "-" ? -1 : 1;
    return sign * this.#power();
  }

  /** From right to left: 2^3^2 is 2^9. */
  #power() {
    const bases = [this.#atom()];
    const signs = [];
    while (this.next === "^" || this.next === "**") {
      this.#take();
      let sign = 1;
      while (this.next === "-" || this.next === "+") sign *= this.#take() === "-" ? -1 : 1;
      signs.push(sign);
      bases.push(this.#atom());
    }
    let value = bases.pop();
    while (bases.length) value = bases.pop() ** (signs.pop() * value);
    return value;
  }

  #atom() {
    const token = this.#take();
    if (typeof token === "number") return token;
    if (token === "(") {
      const value = this.sum();
      this.#expect(")");
      return value;
    }
    if (token === undefined) throw new Error("The expression is not complete.");
    const name = token.toLowerCase();
    if (this.next === "(" && FUNCTIONS.has(name)) return FUNCTIONS.get(name)(...this.#values());
    if (CONSTANTS.has(name)) return CONSTANTS.get(name);
    throw new Error(/\w/.test(token) ? `'${token}' is not known.` : `Unexpected '${token}'.`);
  }

  #values() {
    this.#take();
    const values = [this.sum()];
    while (this.next === ",") {
      this.#take();
      values.push(this.sum());
    }
    this.#expect(")");
    return values;
  }

  #take() {
    this.#at += 1;
    return this.tokens[this.#at - 1];
  }

  #expect(token) {
    if (this.#take() !== token) throw new Error(`'${token}' is missing.`);
  }
}
