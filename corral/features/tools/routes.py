"""`GET /tools` and `POST /tools`: the tools of MCP servers that the operator has configured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import TOOL_LIST, TOOL_RESULT
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers
from corral.api.policy import for_server
from corral.api.router import Operation, Router
from corral.core.errors import FeatureDisabled, InvalidRequest, McpError, NotFound
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.caller import caller_in
from corral.generate.disconnect import run_for_client
from corral.generate.services import ServerServices
from corral.mcp.config import OPTION
from corral.mcp.session import McpTool
from corral.mcp.sessions import McpSessions
from corral.schema.field import Flag
from corral.schema.parse import RequestModel

router = Router()


def _sessions(services: ServerServices) -> McpSessions:
    sessions = services.mcp
    if sessions is None:
        raise FeatureDisabled(f"this feature is disabled: the server runs no tools without {OPTION}")
    return sessions


class ToolCallRequest(RequestModel):
    tool: str = Field(max_length=256, description="Name of the tool, as `GET /tools` lists it.")
    params: dict[str, Any] = Field(default_factory=dict, description="Its arguments.")
    stream: Flag = Field(False, description="Not supported: results come whole.")


@router.get(
    "/tools",
    operation=Operation("listTools", "List the tools", group.TOOLS),
    policy=for_server(Permission.USE, LLAMA_ERRORS),
    responses=answers(TOOL_LIST, 403),
)
async def tools(request: Request, services: ServerServices) -> Response:
    """The tools that this key may call, of all MCP servers that work."""
    sessions = _sessions(services)
    found = await run_for_client(sessions.all_tools(caller_in(request.scope).client), request.receive)
    return JsonResponse([_render(tool) for tool in found])


@router.post(
    "/tools",
    operation=Operation("callTool", "Call a tool", group.TOOLS),
    policy=for_server(Permission.USE, LLAMA_ERRORS),
    body=ToolCallRequest,
    needs=_sessions,
    responses=answers(TOOL_RESULT, 403, 404),
)
async def call_tool(call: Call[ToolCallRequest]) -> Response:
    """Call a tool, and return the result as its MCP server sent it; long texts are cut. A call that failed
    has an `error`."""
    sessions, client = _sessions(call.services), call.client
    body = call.body
    if body.stream:
        raise InvalidRequest("results come whole", field="stream")
    return JsonResponse(await run_for_client(_answer(sessions, client, body), call.caller.disconnect))


# compat: /cors-proxy: 403, as where llama-server's page may not use it. Corral's page needs no proxy.
@router.get(
    "/cors-proxy",
    operation=None,
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
)
@router.post(
    "/cors-proxy",
    operation=None,
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
)
async def proxy(_request: Request, _services: ServerServices) -> Response:
    raise FeatureDisabled("this feature is disabled: Corral does not act as a proxy")


async def _answer(sessions: McpSessions, client: Any, body: ToolCallRequest) -> dict[str, Any]:
    # compat: POST /tools: a call that fails is a 200 with `error`.
    try:
        result = await _call(sessions, client, body)
    except McpError as error:
        return {"error": error.message, "content": [{"type": "text", "text": error.message}], "isError": True}
    text = "\n".join(_texts(result.get("content")))
    if result.get("isError"):
        return {"error": text or "the tool returned an error", **result}
    return {"plain_text_response": text, **result}


def _texts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "text":
            yield str(part.get("text", ""))


async def _call(sessions: McpSessions, client: Any, body: ToolCallRequest) -> dict[str, Any]:
    for server in sessions.names(client):
        if not body.tool.startswith(f"{server}_"):
            continue
        name = body.tool.removeprefix(f"{server}_")
        if any(tool.name == name for tool in await sessions.tools(client, server)):
            return await sessions.call(client, server, name, body.params)
    raise NotFound(f"tool '{body.tool:.64}' does not exist")


def _render(tool: McpTool) -> dict[str, Any]:
    function = {"name": tool.full_name, "description": tool.description, "parameters": tool.schema}
    return {
        "display_name": tool.full_name,
        "tool": tool.full_name,
        "type": "mcp",
        "permissions": {"write": tool.annotations.get("readOnlyHint") is not True},
        "uses_cwd": False,
        "definition": {"type": "function", "function": function},
    }
