"""`tool_choice` that allows some of the tools: a prompt that lists all of them stays cached."""

from __future__ import annotations

from typing import Any

from corral.chat.tool import Tool, ToolChoice, ToolUse
from corral.core.errors import InvalidRequest

ALLOWED_TOOLS = "allowed_tools"
_MODES = {"auto": ToolChoice.AUTO, "required": ToolChoice.REQUIRED}


def parse_allowed(choice: dict[str, Any], tools: tuple[Tool, ...], parallel: bool, field: str) -> ToolUse:
    """The tools that may be called, of all that are known. OpenAI's two APIs nest the choice differently."""
    place = f"{field}.{ALLOWED_TOOLS}" if ALLOWED_TOOLS in choice else field
    spec = choice.get(ALLOWED_TOOLS, choice)
    if not isinstance(spec, dict):
        raise InvalidRequest("must be an object with 'mode' and 'tools'", field=place)
    mode = _MODES.get(str(spec.get("mode")))
    if mode is None:
        raise InvalidRequest("must be 'auto' or 'required'", field=f"{place}.mode")
    names = _parse_names(spec.get("tools"), f"{place}.tools")
    missing = names.difference(tool.name for tool in tools)
    if missing:
        raise InvalidRequest(f"'{min(missing):.64}' is not in 'tools'", field=f"{place}.tools")
    return ToolUse(
        tuple(tool for tool in tools if tool.name in names),
        mode,
        parallel,
        tuple(tool for tool in tools if tool.name not in names),
    )


def name_of(tool: dict[str, Any]) -> Any:
    """The name of a function that a choice refers to."""
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def _parse_names(tools: Any, place: str) -> set[str]:
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest("must be a list of at least one tool", field=place)
    return {_parse_name(tool, f"{place}[{i}]") for i, tool in enumerate(tools)}


def _parse_name(tool: Any, place: str) -> str:
    name = name_of(tool) if isinstance(tool, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest("must be an object that names a function", field=place)
    return name
