"""Random JSON Schemas with keywords that llguidance does not know, and values that are near to them."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "b", "c", "xa", "xb")
TEXTS = ("", "a", "b", "ab", "abc", "x", "é", "ba")  # in Python `$` also matches before a line break
NUMBERS = (0, 1, 2, 3, 5, -1, 1.5, 2.5)
PATTERNS = ("^x", "^a", "b$", "^[abc]+$", "^(?!a)[abx]*$")
DRAFTS: dict[int, str] = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_SINCE = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "unevaluatedProperties": 2019,
    "unevaluatedItems": 2019,
    "minContains": 2019,
    "maxContains": 2019,
    "prefixItems": 2020,
}


def draw_hard_schema(seed: int, draft: int = 2020) -> dict[str, Any]:
    """A schema of a draft; the same seed draws the same one."""
    drawer = _Drawer(random.Random(seed), draft)
    schema = drawer.schema(0)
    place = "$defs" if draft >= 2019 else "definitions"
    return {"$schema": DRAFTS[draft], place: drawer.definitions(), **schema}


def draw_value(rng: random.Random, depth: int = 0) -> Any:
    kinds = [*("null", "boolean", "number", "string"), *["object"] * 4, *["array"] * 3]
    kind = rng.choice(kinds if depth < 3 else kinds[:4])
    if kind == "object":
        names = rng.sample(NAMES, rng.choice([0, 1, 1, 2, 2, 3, 4]))
        return {name: draw_value(rng, depth + 1 + (rng.random() < 0.7)) for name in names}
    if kind == "array":
        return [
            draw_value(rng, depth + 1 + (rng.random() < 0.7)) for _ in range(rng.choice([0, 1, 2, 2, 3, 4]))
        ]
    return {
        "null": None,
        "boolean": rng.random() < 0.5,
        "number": rng.choice(NUMBERS),
        "string": rng.choice(TEXTS),
    }[kind]


class _Drawer:
    def __init__(self, rng: random.Random, draft: int) -> None:
        self._rng = rng
        self._draft = draft

    def definitions(self) -> dict[str, Any]:
        return {
            "one": self._object(2),
            "two": {"enum": self._rng.sample([*TEXTS, *NUMBERS, None, True], 3)},
            "tree": {
                "type": "object",
                "properties": {"a": {"$ref": self._place("tree")}, "b": self._scalar()},
            },
        }

    def schema(self, depth: int) -> Any:
        rng = self._rng
        if depth > 2 or rng.random() < 0.25:
            return self._scalar()
        schema = rng.choice([self._object, self._object, self._array, self._scalar, self._nothing])(depth)
        if isinstance(schema, dict) and rng.random() < 0.75 / (1 + depth):
            schema = {**schema, **self._combined(depth)}
        return self._only_known(schema)

    def _nothing(self, depth: int) -> dict[str, Any]:
        return {}

    def _only_known(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        return {k: v for k, v in schema.items() if _SINCE.get(k, 0) <= self._draft}

    def _place(self, name: str) -> str:
        return f"#/$defs/{name}" if self._draft >= 2019 else f"#/definitions/{name}"

    def _combined(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        keyword = rng.choice(["oneOf", "oneOf", "anyOf", "allOf", "not", "if", "if", "$ref", "const", "enum"])
        inner = lambda: self.schema(depth + 1)  # noqa: E731
        if keyword in ("oneOf", "anyOf", "allOf"):
            return {keyword: [self._branch(depth) for _ in range(rng.randint(1, 3))]}
        if keyword == "not":
            return {"not": rng.choice([inner, lambda: self._branch(depth), self._scalar])()}
        if keyword == "if":
            found = {"if": self._branch(depth), "then": inner(), "else": inner()}
            drop = rng.choice(["then", "else", "", ""])
            return {k: v for k, v in found.items() if k != drop}
        if keyword == "$ref":
            return {"$ref": self._place(rng.choice(["one", "two", "tree"]))}
        if keyword == "const":
            return {"const": draw_value(rng, 1)}
        return {"enum": [draw_value(rng, 1) for _ in range(3)]}

    def _branch(self, depth: int) -> Any:
        rng = self._rng
        tag = {
            "properties": {rng.choice("ab"): {"enum": rng.sample(TEXTS, 2)}},
            "required": [rng.choice("ab")],
        }
        return rng.choice(
            [
                lambda: {"required": rng.sample(NAMES, rng.randint(1, 2))},
                lambda: tag,
                lambda: {"type": "object", **tag},
                lambda: self.schema(depth + 1),
                self._scalar,
            ]
        )()

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "object"} if rng.random() < 0.7 else {}
        names = rng.sample(NAMES, rng.randint(1, 3))
        schema["properties"] = {name: self.schema(depth + 1) for name in names}
        options: dict[str, Any] = {
            "required": lambda: rng.sample(NAMES, 1),
            "additionalProperties": lambda: rng.choice([False, {"type": "integer"}, self.schema(depth + 2)]),
            "patternProperties": lambda: {rng.choice(PATTERNS): self.schema(depth + 2)},
            "propertyNames": self._name_schema,
            "dependentRequired": lambda: {rng.choice(NAMES): rng.sample(NAMES, 1) for _ in range(2)},
            "dependentSchemas": lambda: {rng.choice(NAMES): self._branch(depth + 1)},
            "dependencies": lambda: {rng.choice(NAMES): rng.sample(NAMES, 1), "c": self._branch(depth + 1)},
            "unevaluatedProperties": lambda: rng.choice([False, {"type": "integer"}]),
            "minProperties": lambda: rng.randint(0, 3),
            "maxProperties": lambda: rng.randint(1, 4),
        }
        for keyword, draw in options.items():
            is_known = keyword != "dependencies" or self._draft <= 7
            if is_known and rng.random() < (0.35 if keyword == "required" else 0.14):
                schema[keyword] = draw()
        return self._only_known(schema)

    def _name_schema(self) -> dict[str, Any]:
        rng = self._rng
        return rng.choice(
            [
                {"enum": ["a", "b", "xa"]},
                {"pattern": rng.choice(PATTERNS)},
                {"maxLength": 1},
                {"minLength": 2, "maxLength": 3},
                {"not": {"enum": ["a", "xb"]}},
                {"type": "string"},
            ]
        )

    def _array(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "array"} if rng.random() < 0.7 else {}
        options: dict[str, Any] = {
            "items": lambda: self.schema(depth + 1),
            "prefixItems": lambda: [self.schema(depth + 1) for _ in range(rng.randint(1, 2))],
            "minItems": lambda: rng.randint(0, 2),
            "maxItems": lambda: rng.randint(0, 4),
            "uniqueItems": lambda: True,
            "contains": self._scalar,
            "minContains": lambda: rng.randint(0, 2),
            "maxContains": lambda: rng.randint(0, 2),
            "unevaluatedItems": lambda: rng.choice([False, {"type": "integer"}]),
        }
        for keyword, draw in options.items():
            if rng.random() < 0.4:
                schema[keyword] = draw()
        if self._draft < 2020 and rng.random() < 0.3:
            schema |= {"items": [self._scalar()], "additionalItems": self._scalar()}
        if "uniqueItems" in schema and rng.random() < 0.6:
            schema["items"] = {"enum": rng.sample(TEXTS, 3)}
        return self._only_known(schema)

    def _scalar(self, depth: int = 0) -> dict[str, Any]:
        rng = self._rng
        return self._only_known(
            rng.choice(
                [
                    {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(1, 3)},
                    {"type": "string", "pattern": rng.choice(PATTERNS)},
                    {"type": "integer", "minimum": rng.randint(-1, 3)},
                    {"type": "number", "maximum": rng.choice(NUMBERS)},
                    {
                        "type": rng.choice(
                            ["null", "boolean", "integer", "number", "string", "object", "array"]
                        )
                    },
                    {"type": ["string", "null"]},
                    {"const": rng.choice([*TEXTS, *NUMBERS, None, True])},
                    {"enum": rng.sample([*TEXTS, *NUMBERS, None, True], 3)},
                    {"minLength": 2},
                    {"maximum": 2},
                ]
            )
        )
