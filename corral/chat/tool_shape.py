"""Complete the descriptions of functions for templates that expect more than clients send."""

from __future__ import annotations

from typing import Any

from corral.chat.parameter import types_of
from corral.grammar.schema import resolve

_MAX_REFERENCES = 32  # of one function that are written out: each may be large


def complete_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return definitions whose parameters have `properties`, each of them with a description and one type."""
    return [{**tool, "function": _complete_function(tool["function"])} for tool in tools]


def _complete_function(function: dict[str, Any]) -> dict[str, Any]:
    root = function["parameters"]
    parameters = {"type": "object", "properties": {}, "required": [], **root}
    return {**function, "parameters": _Completion(root).complete(parameters, is_referred=False)}


class _Completion:
    """Writes references out, but not those in what they refer to."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._definitions = {k: v for k, v in root.items() if k in ("$defs", "definitions")}
        self._n_left = _MAX_REFERENCES

    def complete(self, schema: dict[str, Any], is_referred: bool) -> dict[str, Any]:
        found = dict(schema)
        if isinstance(schema.get("properties"), dict):
            parts = schema["properties"].items()
            found["properties"] = {name: self._typed(part, is_referred) for name, part in parts}
        if isinstance(schema.get("items"), dict):
            found["items"] = self._typed(schema["items"], is_referred)
        return found

    def _typed(self, part: Any, is_referred: bool) -> dict[str, Any]:
        known = part if isinstance(part, dict) else {}
        target = resolve(known, self._root)
        types = sorted(types_of({**self._definitions, **target}) - {"null", "None"})
        own = {k: v for k, v in known.items() if k != "$ref"}
        if "$ref" in known and not is_referred and self._n_left > 0:
            self._n_left -= 1
            own, is_referred = {**target, **own}, True
        elif "$ref" in known:
            own["properties"] = {}
        return self.complete({"description": "", **own, "type": types[0] if types else "string"}, is_referred)
