"""Convert tools and `tool_choice` to canonical functions."""

from __future__ import annotations

from typing import Any

from corral.api.anthropic.block import BlockRemarks
from corral.api.anthropic.schema import ToolChoiceField
from corral.chat.message import MAX_TOOLS
from corral.core.errors import InvalidRequest

_OF_TOOL = ("name", "description", "input_schema", "strict", "eager_input_streaming")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def parse_tools(tools: Any, names: dict[str, str], remarks: BlockRemarks) -> list[dict[str, Any]]:
    """Return the functions among the tools. Tools that only Anthropic can run are dropped with a warning.

    Adds the client's names of their fields to `names`.
    """
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"must be a list of at most {MAX_TOOLS} tools", field="tools")
    functions: list[dict[str, Any]] = []
    for i, tool in enumerate(tools):
        place = f"tools[{i}]"
        if not isinstance(tool, dict):
            raise InvalidRequest("must be an object", field=place)
        _check_texts(tool, place)
        if tool.get("type") not in (None, "custom") and "input_schema" not in tool:
            remarks.warn(place, f"was ignored: this server has no tool of the type '{tool['type']!s:.64}'")
            continue
        own = f"tools[{len(functions)}]"
        names |= {own: place, f"{own}.function": place, f"{own}.function.parameters": f"{place}.input_schema"}
        functions.append(_parse_tool(tool, place, remarks))
    return functions


def _check_texts(tool: dict[str, Any], place: str) -> None:
    for name in ("name", "type", "description"):
        if not isinstance(tool.get(name, ""), str):
            raise InvalidRequest("must be a string", field=f"{place}.{name}")
    if not tool.get("name"):
        raise InvalidRequest("is missing", field=f"{place}.name")


def parse_choice(choice: ToolChoiceField | None) -> tuple[Any, bool]:
    """Return the canonical choice, and whether parallel calls are allowed."""
    if choice is None:
        return None, True
    is_parallel = not choice.disable_parallel_tool_use
    if choice.type != "tool":
        return _CHOICES[choice.type], is_parallel
    if not choice.name:
        raise InvalidRequest("must name a tool", field="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}, is_parallel


def _parse_tool(tool: dict[str, Any], place: str, remarks: BlockRemarks) -> dict[str, Any]:
    remarks.check_keys(tool, _OF_TOOL, place)
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequest("must be a JSON Schema object", field=f"{place}.input_schema")
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}
