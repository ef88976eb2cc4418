"""Tools of the type `mcp`: which of their functions the model sees, and which may run without approval.

Only servers that the operator has configured are called, whatever address a request names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from corral.api.responses.item import Item
from corral.api.responses.tool import Tool
from corral.core.client import Client
from corral.core.errors import CorralError, InvalidRequest, NotFound
from corral.mcp.session import McpTool, text_of
from corral.mcp.sessions import McpSessions

KIND = "mcp"
DECLINED = "The user did not approve this call."
_APPROVALS = ("always", "never")


@dataclass(frozen=True, slots=True)
class McpAccess:
    """One tool of the type `mcp`: the functions of a server that the model may call. `free`: the names of
    those that need no approval."""

    label: str
    tools: list[McpTool]
    free: frozenset[str] = field(default_factory=frozenset)

    def namespace(self) -> Tool:
        """Return the functions in the form that other parts of this API know."""
        functions = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
            }
            for tool in self.tools
        ]
        return {"type": "namespace", "name": self.label, "tools": functions}

    def list_item(self, id: str) -> Item:
        tools = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.schema,
                "annotations": tool.annotations or None,
            }
            for tool in self.tools
        ]
        return {"id": id, "type": "mcp_list_tools", "server_label": self.label, "tools": tools, "error": None}


def is_mcp(tools: Any) -> bool:
    return isinstance(tools, list) and any(
        isinstance(each, dict) and each.get("type") == KIND for each in tools
    )


async def open_access(tools: Iterable[Any], sessions: McpSessions, client: Client) -> dict[str, McpAccess]:
    """Return what the client asks for, by label. Raises InvalidRequest and McpError."""
    found: dict[str, McpAccess] = {}
    for i, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == KIND:
            access = await _open_one(tool, f"tools[{i}]", sessions, client)
            found[access.label] = access
    return found


def expand(tools: Iterable[Any], access: dict[str, McpAccess]) -> list[Any]:
    """Replace the tools of the type `mcp` by namespaces of functions."""
    is_ours = [isinstance(tool, dict) and tool.get("type") == KIND for tool in tools]
    return [
        access[tool["server_label"]].namespace() if ours else tool
        for tool, ours in zip(tools, is_ours, strict=True)
    ]


def expand_choice(choice: Any) -> Any:
    """Convert a choice of a server or its tool: the model must call one."""
    if not isinstance(choice, dict) or choice.get("type") != KIND:
        return choice
    label, name = choice.get("server_label"), choice.get("name")
    return "required" if name is None else {"type": "function", "name": name, "namespace": label}


async def run_call(sessions: McpSessions, client: Client, call: Item) -> Item:
    """Run a call; return it with its output or its error."""
    arguments = _parse_arguments(call["arguments"])
    try:
        if not isinstance(arguments, dict):
            raise InvalidRequest("the arguments are not an object")
        result = await sessions.call(client, call["server_label"], call["name"], arguments)
    except CorralError as error:
        problem: Item = {"type": "mcp_protocol_error", "code": -32603, "message": error.message}
        return {**call, "status": "failed", "error": problem}
    if result.get("isError") is True:
        problem = {"type": "mcp_tool_execution_error", "content": result["content"]}
        return {**call, "status": "failed", "error": problem}
    return {**call, "status": "completed", "output": text_of(result)}


def approved_calls(items: Sequence[tuple[str, Item]], input: list[Item]) -> list[Item]:
    """Return the calls among `items` that the new ones, `input`, approve."""
    asked = {item["id"]: item for _, item in items if item["type"] == "mcp_approval_request"}
    found = []
    for i, item in enumerate(input):
        if item["type"] != "mcp_approval_response":
            continue
        request = asked.get(item.get("approval_request_id"))
        if request is None:
            raise InvalidRequest("names no request", field=f"input[{i}].approval_request_id")
        if item.get("approve") is True:
            fields = {name: request.get(name) for name in ("server_label", "name", "arguments")}
            found.append({**fields, "approval_request_id": request["id"]})
    return found


def output_text(call: Item) -> str:
    """Return what the model sees of a call's end."""
    error = call.get("error")
    if not error:
        return str(call.get("output") or "")
    if isinstance(error, dict) and isinstance(error.get("content"), list):
        parts = [part for part in error["content"] if isinstance(part, dict)]
        return f"Error: {text_of({'content': parts})}"
    return f"Error: {error.get('message') if isinstance(error, dict) else error}"


def _parse_arguments(text: Any) -> Any:
    try:
        return from_json(text or "{}")
    except (ValueError, TypeError):
        return None


async def _open_one(tool: Tool, place: str, sessions: McpSessions, client: Client) -> McpAccess:
    label = tool.get("server_label")
    if not isinstance(label, str):
        raise InvalidRequest("must be a string", field=f"{place}.server_label")
    for name in ("server_url", "connector_id"):
        if tool.get(name) is not None:
            message = "is not allowed: this server calls only MCP servers of its operator, by 'server_label'"
            raise InvalidRequest(message, field=f"{place}.{name}")
    try:
        tools = await sessions.tools(client, label)
    except NotFound as error:
        raise InvalidRequest(error.message, field=f"{place}.server_label") from None
    allowed = _filtered(tools, tool.get("allowed_tools"), f"{place}.allowed_tools")
    return McpAccess(
        label, allowed, _free(allowed, tool.get("require_approval"), f"{place}.require_approval")
    )


def _filtered(tools: list[McpTool], given: Any, place: str) -> list[McpTool]:
    if given is None:
        return tools
    if isinstance(given, list):
        given = {"tool_names": given}
    if not isinstance(given, dict):
        raise InvalidRequest("must be a list of names, or an object", field=place)
    names, reads = given.get("tool_names"), given.get("read_only")
    if names is not None and not _are_names(names):
        raise InvalidRequest("must be a list of strings", field=f"{place}.tool_names")
    return [
        tool
        for tool in tools
        if (names is None or tool.name in names)
        and (reads is None or (tool.annotations.get("readOnlyHint") is True) == reads)
    ]


def _free(tools: list[McpTool], given: Any, place: str) -> frozenset[str]:
    """Return the names of the tools that need no approval; without a word of the client, all need it."""
    if given is None or given in _APPROVALS:
        return frozenset(tool.name for tool in tools) if given == "never" else frozenset()
    if not isinstance(given, dict):
        raise InvalidRequest("must be 'always', 'never' or an object", field=place)
    if given.get("never") is None:
        return frozenset()
    kept = {tool.name for tool in _filtered(tools, given["never"], f"{place}.never")}
    if given.get("always") is not None:
        kept -= {tool.name for tool in _filtered(tools, given["always"], f"{place}.always")}
    return frozenset(kept)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
