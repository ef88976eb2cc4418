"""Random JSON Schemas whose answers are short: every keyword that is enforced, in many combinations."""

from __future__ import annotations

import random
from typing import Any

MAX_DEPTH = 3

# Not drawn, because answers are known not to follow: tests/model/test_schema_keywords.py shows each of them.
NOT_DRAWN = (
    "minProperties above 1 where names are free: one name may come twice",
    "exclusive bounds of numbers between two neighbouring integers",
    "integers beyond 2^53",
    "classes with &&, -- or ~~ in a pattern",
    "additionalItems, and exclusiveMinimum as a boolean, beside anyOf",
)

NAMES = (
    *("a", "b", "id", "name", "type", "const", "$ref", "properties", "x y", "", "0"),
    *('"', "it's", "back\\slash", "new\nline", "é", "日本", "😀", "\u0001", "a/b~c", "<end>"),
)
PATTERNS = (
    *(
        "^[a-z]{1,4}$",
        "^a|b$",
        r"^\d{2}-\d{2}$",
        "^(foo|bar)+$",
        r"^\w{2,5}$",
        "^[^a-y]{1,3}$",
        "^x?y*z{1,2}$",
    ),
    *('^"[\\\\"]{2}$', "^é{1,3}$", "^[à-ü日本]{2}$", "^.{0,3}$", r"^\S{1,2}\s\S$", "^$", "^(a(b(c)?)?)?$"),
)
NAME_PATTERNS = (("^x_[a-c]{1,2}$",), ("^k[0-9]$",), ("^x_[a-c]$", "^k[0-9]$"))
FORMATS: dict[str, dict[str, Any]] = {
    "date": {},
    "date-time": {"maxLength": 25},
    "time": {"maxLength": 16},
    "duration": {"maxLength": 9},
    "email": {"maxLength": 10},
    "hostname": {"maxLength": 9},
    "ipv4": {},
    "ipv6": {"maxLength": 20},
    "uri": {"maxLength": 12},
    "uuid": {},
}
CONSTANTS: tuple[Any, ...] = (
    *(None, True, False, 0, -7, 1.5, 1e-7, 12345678901, "", "a", 'quo"te\\', "\n\t\u0001", "日本😀"),
    *([], [1, [2, "b"]], {}, {"a": {"b": [None, {"c": 1.25}]}}, {"z": 1, "a": 2, 'q"': [True]}),
)


# Types that other keywords imply, with keywords of which one is enough.
IMPLIED: dict[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "patternProperties", "minProperties", "maxProperties"},
}


def draw_schema(seed: int) -> dict[str, Any]:
    return _Drawer(random.Random(seed)).root()


def drop_types(schema: Any, seed: int) -> Any:
    """The same without many of the types that its other keywords imply."""
    rng = random.Random(seed)

    def drop(part: Any, is_kept: bool = False) -> Any:
        if isinstance(part, list):
            return [drop(item, is_kept) for item in part]
        if not isinstance(part, dict):
            return part
        kind = part.get("type")
        rest = {k: v if k in ("const", "enum") else drop_in(k, v) for k, v in part.items()}
        is_implied = isinstance(kind, str) and IMPLIED.get(kind, set()) & part.keys()
        if is_implied and not is_kept and rng.random() < 0.8:
            del rest["type"]
        return rest

    def drop_in(keyword: str, value: Any) -> Any:
        if keyword in ("properties", "patternProperties", "$defs"):
            return {name: drop(part) for name, part in value.items()}
        # What is not an object follows all objects without a type: `oneOf` needs the types of its branches.
        return drop(value, is_kept=keyword == "oneOf" and any("const" not in str(part) for part in value))

    return drop(schema)


class _Drawer:
    """Draws one schema; `$defs` are collected on the way."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._defs: dict[str, Any] = {}

    def root(self) -> dict[str, Any]:
        pick = self._rng.choice([self._object, self._object, self._array, self._branches, self._merged])
        schema = pick(0)
        return {**schema, "$defs": self._defs} if self._defs else schema

    def _any(self, depth: int) -> Any:
        nested = [self._object, self._array, self._branches, self._merged, self._reference]
        if depth < MAX_DEPTH and self._rng.random() < 0.45:
            return self._rng.choice(nested)(depth)
        scalars = [self._string, self._string, self._number, self._number, self._constant, self._simple]
        return self._rng.choice(scalars)()

    def _simple(self) -> dict[str, Any]:
        return self._rng.choice(
            [
                {"type": "boolean"},
                {"type": "null"},
                {"type": ["boolean", "null"], "description": "neither \"a\" nor 'b'"},
                {"type": ["string", "integer", "null"], "maxLength": 3, "minimum": 10, "maximum": 99},
                {"type": ["array", "number"], "maxItems": 2, "items": {"type": "null"}, "multipleOf": 0.5},
            ]
        )

    def _constant(self) -> dict[str, Any]:
        if self._rng.random() < 0.5:
            return {"const": self._rng.choice(CONSTANTS)}
        return {"enum": self._rng.sample(CONSTANTS, self._rng.randint(1, 5))}

    def _string(self) -> dict[str, Any]:
        rng = self._rng
        kind = rng.randrange(4)
        if kind == 0:
            name = rng.choice(list(FORMATS))
            return {"type": "string", "format": name, **FORMATS[name]}
        if kind == 1:
            return {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": 6}
        most = rng.randint(0, 8)
        return {"type": "string", "minLength": rng.randint(0, most), "maxLength": most}

    def _number(self) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choice(["integer", "number"])
        schema: dict[str, Any] = {"type": kind}
        low = rng.choice([-1000, -100, -12.5, -3, 0, 1, 7, 99.75])
        if rng.random() < 0.8:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.8:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([2, 10, 250.25, 10_000])
        if rng.random() < 0.3:
            schema["multipleOf"] = rng.choice([1, 2, 7] if kind == "integer" else [0.5, 0.25, 1])
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "array"}
        most = rng.randint(1, 3)
        if rng.random() < 0.4:
            schema["prefixItems"] = [self._any(depth + 1) for _ in range(rng.randint(1, 2))]
            most += len(schema["prefixItems"])
        schema["items"] = self._any(depth + 1) if rng.random() < 0.8 else "prefixItems" not in schema
        schema["maxItems"] = most
        least = rng.randint(0, 2)
        if schema["items"] is not False:
            schema["minItems"] = min(least, most)
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(0 if depth else 1, 4))
        schema: dict[str, Any] = {"type": "object", "properties": {n: self._any(depth + 1) for n in names}}
        schema["required"] = [name for name in names if rng.random() < 0.6]
        rng.shuffle(schema["required"])
        extra = rng.randrange(6)
        if extra == 0:
            schema["additionalProperties"] = False
        elif extra == 1:
            schema["additionalProperties"] = rng.choice([True, {"type": "boolean"}, self._any(MAX_DEPTH)])
        elif extra == 2:
            patterns = rng.choice(NAME_PATTERNS)
            schema["patternProperties"] = {pattern: self._any(depth + 1) for pattern in patterns}
            schema["additionalProperties"] = rng.choice([False, {"type": "null"}])
        if rng.random() < 0.3:
            self._bound(schema, len(names), extra in (1, 2))
        return schema

    def _bound(self, schema: dict[str, Any], n_names: int, is_open: bool) -> None:
        """How many properties there are; with open names as far as that can be enforced."""
        if is_open:
            schema["required"] = list(schema["properties"])
            schema["maxProperties"] = n_names + self._rng.randint(0, 2)
        elif n_names:
            schema["minProperties"] = 1

    def _branches(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.5:
            return {"anyOf": [self._any(depth + 1) for _ in range(rng.randint(1, 3))]}
        if rng.random() < 0.5:
            return {"oneOf": [self._string(), self._number(), {"type": "null"}, self._array(depth + 1)]}
        return {"oneOf": [self._tagged(kind, depth) for kind in ("circle", "square", "é")]}

    def _tagged(self, kind: str, depth: int) -> dict[str, Any]:
        properties = {"kind": {"const": kind}, "value": self._any(depth + 1)}
        return {"type": "object", "properties": properties, "required": ["kind"]}

    def _merged(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        kind = rng.randrange(7)
        if kind == 0:
            return {"allOf": [{"type": "integer", "minimum": -50}, {"maximum": 50}, {"multipleOf": 3}]}
        if kind == 1:
            return {"allOf": [{"type": "string", "maxLength": 5}, {"pattern": rng.choice(PATTERNS)}]}
        if kind == 2:
            first = {"type": "object", "properties": {"one": self._any(depth + 1)}, "required": ["one"]}
            more = {"properties": {"two": self._any(depth + 1), "three": {"type": "null"}}}
            return {"allOf": [first, {**more, "required": ["three"]}]}
        if kind == 3:
            return {"type": "string", "enum": [*rng.sample(CONSTANTS, 4), "b"], "title": "no others"}
        if kind == 4:
            return {**self._reference(depth), "description": "as above"}
        if kind == 5:
            parts = [{"maximum": 7, "maxLength": 2}, {"minimum": 90, "minLength": 5, "maxLength": 9}]
            return {"type": ["number", "string", "null"], "minimum": -3, "maximum": 99, "anyOf": parts}
        schema = self._object(depth + 1)
        names = list(schema["properties"]) or ["a"]
        return {**schema, rng.choice(["allOf", "anyOf"]): [{"required": [name]} for name in names]}

    def _reference(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        name = rng.choice(["part", "node", "tree", "list/of~all"])
        place = name.replace("~", "~0").replace("/", "~1")
        this = {"$ref": f"#/$defs/{place}"}
        if name not in self._defs:
            self._defs[name] = self._body(name, this)
        return this

    def _body(self, name: str, this: dict[str, Any]) -> dict[str, Any]:
        """What a name stands for: a part, or something that may hold others like `this`."""
        value = self._any(MAX_DEPTH)
        if name == "part":
            return value
        if name == "node":
            return {"type": "object", "properties": {"value": value, "next": this}, "required": ["value"]}
        parts = {"type": "array", "items": this, "maxItems": 2}
        if name == "tree":
            return {"type": "object", "properties": {"value": value, "parts": parts}}
        return {"anyOf": [{"type": "null"}, parts]}
