"""Leave out of patterns what no grammar expresses: look-around, word boundaries, back references.

Only where a value has to match, so that what is left allows every value that the whole schema allows.
"""

from __future__ import annotations

import re
from typing import Any

from corral.grammar.rewrite.part import AT, Schema, steps_of
from corral.grammar.rewrite.widen import Place

_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_QUANTIFIERS = "*+?{"
_ATOM = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<?[=!]|.", re.DOTALL)
_IRREGULAR = re.compile(r"\(\?<?[=!]|\\[bBk1-9]")
_OPPOSITES = ("not", "if", "oneOf", "contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems")


def is_irregular(pattern: Any) -> bool:
    return isinstance(pattern, str) and any(map(_IRREGULAR.fullmatch, _ATOM.findall(pattern)))


def widen_pattern(pattern: str) -> str:
    """Return a regular pattern that matches whatever this one matches; an empty one matches everything."""
    kept: list[str] = []
    depth = 0  # of groups inside one that looks around
    was_left_out = False
    for atom in _ATOM.findall(pattern):
        if re.fullmatch(r"\\[k1-9]", atom) or (was_left_out and atom in _QUANTIFIERS):
            return ""
        was_left_out = depth == 1 and atom == ")"
        if depth or atom in _LOOKS:
            depth += (atom in ("(", *_LOOKS)) - (atom == ")")
        elif atom in (r"\b", r"\B"):
            was_left_out = True
        else:
            kept.append(atom)
    return "".join(kept)


def drop_irregular(schema: Schema, left_out: set[Place]) -> Schema:
    """Return the schema with regular patterns. The places of others are added to `left_out`."""
    return schema if _has_opposite_reference(schema) else _drop(schema, left_out)


def _drop(part: Any, left_out: set[Place]) -> Any:
    if not isinstance(part, dict):
        return part
    dropped = dict(part)
    if is_irregular(part.get("pattern")):
        dropped["pattern"] = widen_pattern(part["pattern"])
        left_out.add((str(part.get(AT, "")), "pattern"))
    for way, child in steps_of(part):
        if way[0] not in _OPPOSITES:
            _replace(dropped, way, _drop(child, left_out))
    return dropped


def _replace(part: Schema, way: tuple[str, ...], child: Any) -> None:
    if len(way) == 1:
        part[way[0]] = child
    elif isinstance(part[way[0]], list):
        part[way[0]] = [child if str(i) == way[1] else other for i, other in enumerate(part[way[0]])]
    else:
        part[way[0]] = {**part[way[0]], way[1]: child}


def _has_opposite_reference(part: Any) -> bool:
    """Whether a part that is referenced may have to be other than it says."""
    return any(
        _has_reference(child) if way[0] in _OPPOSITES else _has_opposite_reference(child)
        for way, child in steps_of(part)
    )


def _has_reference(part: Any) -> bool:
    is_one = isinstance(part, dict) and bool(part.keys() & {"$ref", "$dynamicRef", "$recursiveRef"})
    return is_one or any(_has_reference(child) for _, child in steps_of(part))
