"""Check the arguments of a call one by one, in formats that write each of them between tags."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from corral.chat.parameter import properties_of
from corral.chat.tool import Tool
from corral.core.params import SchemaCheck
from corral.grammar.check.mark import CHECK

_SHARED = ("$schema", "$defs", "definitions")
_PLAIN = {"type", "properties", "required", "additionalProperties", "title", "description", *_SHARED}
_REFERENCE = re.compile(r'"\$(?:ref|dynamicRef|recursiveRef|id|anchor)": "(?!#/(?:\$defs|definitions)/)')


def argument_checks(tool: Tool, tools: Sequence[Tool]) -> list[tuple[Any, SchemaCheck]]:
    """Return the checks of single arguments, each with its schema in the grammar; none if a rule is about
    several arguments, or another function has an argument of the same name with other rules."""
    check = tool.check
    if check is None or check.schema.keys() - _PLAIN or _REFERENCE.search(json.dumps(check.client)):
        return []
    written = properties_of(tool)
    found: list[tuple[Any, SchemaCheck]] = []
    for name, part in check.schema.get("properties", {}).items():
        if not _may_be_marked(part, check.schema):
            continue
        own = _client_part(tool, name)
        if name not in written or own is None or any(_client_part(t, name) not in (None, own) for t in tools):
            return []
        alone = msgspec.structs.replace(check, schema=_stand_alone(part, check.schema), client=own)
        found.append((written[name], alone))
    return found


def _may_be_marked(part: Any, root: dict[str, Any]) -> bool:
    text = json.dumps(part)
    return CHECK in text or ("$ref" in text and CHECK in json.dumps(root))


def _client_part(tool: Tool, name: str) -> dict[str, Any] | None:
    """Return the client's own schema of an argument, without references to the rest of its function."""
    client = tool.check.client if tool.check is not None else tool.parameters
    part = client.get("properties", {}).get(name)
    return _stand_alone(part, client) if isinstance(part, dict) else None


def _stand_alone(part: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    return {**part, **{key: root[key] for key in _SHARED if key in root}}
