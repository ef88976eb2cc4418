"""Convert tools and `tool_choice` to canonical functions, and record the client's names of them.

A custom tool takes a text, not JSON: it becomes a function with that text as its only argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from corral.api.shared.warnings import Warnings
from corral.chat.message import MAX_TOOLS
from corral.core.errors import InvalidRequest

CUSTOM_INPUT = "input"  # the argument of a custom tool
_OF_FUNCTION = ("name", "description", "parameters", "strict", "allowed_callers")
_OF_CUSTOM = ("name", "description", "format", "allowed_callers")
_OF_NAMESPACE = ("name", "tools")
_MODES = ("none", "auto", "required")

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """The tool that a function was made from."""

    kind: str  # function or custom
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class ToolTable:
    """Mutable while tools are parsed. `origins`: by the names that the model sees; `foreign`: the types of
    tools that this server cannot run; `names`: the client's names of canonical fields."""

    functions: list[Tool] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def origin(self, name: str) -> Origin:
        return self.origins.get(name) or Origin("function", name)


def flat_name(name: str, namespace: str | None) -> str:
    """Return the name of a function in a namespace as the model sees it."""
    return f"{namespace}.{name}" if namespace and namespace != name else name


def parse_tools(tools: Any, remarks: Warnings) -> ToolTable:
    """Convert tools; hosted ones are dropped with a warning."""
    table = ToolTable()
    if tools is None:
        return table
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"must be a list of at most {MAX_TOOLS} tools", field="tools")
    for tool, place, namespace in _flatten(tools, "tools", None, remarks):
        kind = tool.get("type")
        if kind == "function":
            _add(table, tool, "function", _function(tool, place, remarks), place, namespace)
        elif kind == "custom":
            _add(table, tool, "custom", _custom(tool, place, remarks), place, namespace)
        else:
            table.foreign.append(str(kind))
            remarks.warn(place, f"was ignored: this server has no tool of the type '{kind!s:.64}'")
    return table


def parse_choice(choice: Any, table: ToolTable) -> tuple[Any, list[Tool]]:
    """Return the canonical choice, and the functions that it allows."""
    functions = table.functions
    if choice is None or choice in _MODES:
        if choice == "required" and not functions and table.foreign:
            raise _missing(table.foreign[0])
        return choice, functions
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("function", "custom"):
        name = _find(choice, table, "tool_choice.name")
        return {"type": "function", "function": {"name": name}}, functions
    if kind == "allowed_tools":
        return _parse_allowed(choice, table)
    if isinstance(kind, str):
        raise _missing(kind)
    message = "must be 'auto', 'none', 'required', or an object with a 'type'"
    raise InvalidRequest(message, field="tool_choice")


def _flatten(
    tools: list[Any], place: str, namespace: str | None, remarks: Warnings
) -> Iterator[tuple[Tool, str, str | None]]:
    """Yield all tools with their places, including those in namespaces."""
    for i, tool in enumerate(tools):
        where = f"{place}[{i}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise InvalidRequest("must be an object with a 'type'", field=where)
        if tool["type"] == "namespace" and namespace is None:
            remarks.check_keys(tool, _OF_NAMESPACE, where)
            inner = tool.get("tools")
            if not isinstance(inner, list) or not isinstance(tool.get("name"), str):
                raise InvalidRequest("must have a 'name' and a list of 'tools'", field=where)
            yield from _flatten(inner, f"{where}.tools", tool["name"], remarks)
        else:
            yield tool, where, namespace


def _add(table: ToolTable, tool: Tool, kind: str, function: Tool, place: str, namespace: str | None) -> None:
    name = tool.get("name")
    if not isinstance(name, str):
        raise InvalidRequest("must be a string", field=f"{place}.name")
    own, schema = (
        f"tools[{len(table.functions)}]",
        "parameters" if kind == "function" else "format.definition",
    )
    table.names |= {own: place, f"{own}.function": place, f"{own}.function.parameters": f"{place}.{schema}"}
    function["name"] = flat_name(name, namespace)
    table.origins[function["name"]] = Origin(kind, name, namespace)
    table.functions.append({"type": "function", "function": function})


def _function(tool: Tool, place: str, remarks: Warnings) -> Tool:
    remarks.check_keys(tool, _OF_FUNCTION, place)
    _check_callers(tool, place, remarks)
    kept = ("description", "parameters", "strict")
    return {"name": "", **{name: tool[name] for name in kept if tool.get(name) is not None}}


def _custom(tool: Tool, place: str, remarks: Warnings) -> Tool:
    remarks.check_keys(tool, _OF_CUSTOM, place)
    _check_callers(tool, place, remarks)
    text: Tool = {"type": "string", **_parse_format(tool.get("format"), f"{place}.format", remarks)}
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: text},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    about = {"description": tool["description"]} if isinstance(tool.get("description"), str) else {}
    return {"name": "", **about, "parameters": parameters}


def _check_callers(tool: Tool, place: str, remarks: Warnings) -> None:
    callers = tool.get("allowed_callers")
    if callers is not None and callers != ["direct"]:
        remarks.warn(f"{place}.allowed_callers", "was ignored: the model calls all tools directly")


def _parse_format(format: Any, place: str, remarks: Warnings) -> Tool:
    """Return the schema of a custom tool's text. A regular expression is enforced; other grammars are shown
    to the model."""
    if format is None:
        return {}
    kind = format.get("type") if isinstance(format, dict) else None
    if kind not in ("text", "grammar"):
        raise InvalidRequest("must be an object whose 'type' is 'text' or 'grammar'", field=place)
    remarks.check_keys(format, ("syntax", "definition"), place)
    if kind == "text":
        return {}
    syntax, definition = format.get("syntax"), format.get("definition")
    if syntax not in ("lark", "regex"):
        raise InvalidRequest("must be 'lark' or 'regex'", field=f"{place}.syntax")
    if not isinstance(definition, str):
        raise InvalidRequest("must be a string", field=f"{place}.definition")
    about = {"description": f"A text that follows this {syntax} grammar:\n{definition}"}
    if syntax == "regex":
        return {**about, "pattern": f"^(?:{definition})$"}
    remarks.warn(place, "is shown to the model, and not enforced")
    return about


def _parse_allowed(choice: Tool, table: ToolTable) -> tuple[str, list[Tool]]:
    mode, allowed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequest("must be 'auto' or 'required'", field="tool_choice.mode")
    if not isinstance(allowed, list):
        raise InvalidRequest("must be a list", field="tool_choice.tools")
    ours = [tool for tool in allowed if isinstance(tool, dict) and tool.get("type") in ("function", "custom")]
    if mode == "required" and not ours:
        raise InvalidRequest("names no tool that this server has", field="tool_choice.tools")
    names = {_find(tool, table, "tool_choice.tools") for tool in ours}
    return mode, [tool for tool in table.functions if tool["function"]["name"] in names]


def _find(choice: Tool, table: ToolTable, place: str) -> str:
    """Return the model's name of a tool that the client names."""
    name, namespace = choice.get("name"), choice.get("namespace")
    for flat, origin in table.origins.items():
        if origin.name == name and origin.kind == choice["type"] and namespace in (None, origin.namespace):
            return flat
    raise InvalidRequest(f"'{name!s:.64}' is not in 'tools'", field=place)


def _missing(kind: str) -> InvalidRequest:
    return InvalidRequest(f"this server has no tool of the type '{kind:.64}'", field="tool_choice")
