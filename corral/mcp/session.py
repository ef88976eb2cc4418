"""A session with one MCP server: the handshake, its tools, calls to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import Any

from corral.core.errors import McpError
from corral.mcp.transport import Message, Transport

_VERSION = "2025-06-18"
_MAX_PAGES = 10  # of a list of tools
_MAX_TOOLS = 128  # of a server
_MAX_CALLS = 8  # at a time
_MAX_TEXT_CHARS = 256 << 10  # of a result


@dataclass(frozen=True, slots=True)
class McpTool:
    """`schema`: the JSON Schema of its arguments."""

    server: str
    name: str
    description: str
    schema: dict[str, Any]
    annotations: dict[str, Any]

    @property
    def full_name(self) -> str:
        """Return the name that is unique among all servers. compat: /tools: that of llama-server."""
        return f"{self.server}_{self.name}"


class Session:
    """Mutable: an open session."""

    def __init__(self, name: str, transport: Transport, timeout_s: float) -> None:
        self.transport = transport
        self._name = name
        self._timeout_s = timeout_s
        self._ids = count(1)
        self._slots = asyncio.Semaphore(_MAX_CALLS)
        self._n_calls = 0
        self.tools: list[McpTool] = []

    @property
    def is_idle(self) -> bool:
        return self._n_calls == 0

    async def open(self) -> None:
        """Shake hands, and list the tools. Raises McpError."""
        about = {"name": "corral", "version": "1"}
        await self._ask("initialize", protocolVersion=_VERSION, capabilities={}, clientInfo=about)
        await self.transport.exchange({"jsonrpc": "2.0", "method": "notifications/initialized"})
        cursor: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            page = await self._ask("tools/list", **cursor)
            listed = page.get("tools")
            self.tools += [
                tool for each in (listed if isinstance(listed, list) else []) for tool in self._tool(each)
            ]
            if not isinstance(page.get("nextCursor"), str):
                break
            cursor = {"cursor": page["nextCursor"]}
        del self.tools[_MAX_TOOLS:]

    async def call(self, name: str, arguments: dict[str, Any]) -> Message:
        """Return the result of a tool, with texts cut to a limit. Raises McpError."""
        self._n_calls += 1
        try:
            async with self._slots:
                result = await self._ask("tools/call", name=name, arguments=arguments)
        finally:
            self._n_calls -= 1
        content = result.get("content")
        parts = (
            [_cut(part) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        )
        return {**result, "content": parts}

    async def _ask(self, method: str, **params: Any) -> Message:
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        try:
            answer = await asyncio.wait_for(self.transport.exchange(message), self._timeout_s)
        except asyncio.TimeoutError:
            raise McpError(f"the MCP server '{self._name}' took longer than {self._timeout_s:g} s") from None
        error, result = (answer or {}).get("error"), (answer or {}).get("result")
        if isinstance(error, dict):
            raise McpError(f"the MCP server '{self._name}': {str(error.get('message'))[:1000]}")
        if not isinstance(result, dict):
            raise McpError(f"the MCP server '{self._name}' sent an invalid answer")
        return result

    def _tool(self, given: Any) -> list[McpTool]:
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            return []
        schema, about, notes = (given.get(key) for key in ("inputSchema", "description", "annotations"))
        return [
            McpTool(
                self._name,
                given["name"],
                about if isinstance(about, str) else "",
                schema if isinstance(schema, dict) else {"type": "object"},
                notes if isinstance(notes, dict) else {},
            )
        ]


def text_of(result: Message) -> str:
    """Return the text of a tool's result; other parts are only named."""
    parts = [
        part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')!s:.64}]"
        for part in result["content"]
    ]
    return "\n".join(parts)


def _cut(part: Message) -> Message:
    text = part.get("text")
    if not isinstance(text, str) or len(text) <= _MAX_TEXT_CHARS:
        return part
    return {**part, "text": f"{text[:_MAX_TEXT_CHARS]}\n[cut: {len(text)} characters in all]"}
