"""The sessions with all configured MCP servers. Each API key has its own: a process never serves two."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from corral.core.client import Client
from corral.core.errors import McpError, NotFound, Unavailable
from corral.mcp.config import McpServer
from corral.mcp.session import McpTool, Session
from corral.mcp.stdio import start_process
from corral.mcp.transport import Message, Transport

_MAX_SESSIONS = 64

_log = logging.getLogger("corral")
_Key = tuple[str, str]  # of a client, of a server


class McpSessions:
    """Mutable: sessions are opened when they are first used, and closed when too many others are."""

    def __init__(
        self, servers: tuple[McpServer, ...], builtin: Callable[[], Transport] | None = None
    ) -> None:
        """`builtin` opens the servers that are a part of this one."""
        self._builtin = builtin
        self._servers = {server.name: server for server in servers}
        self._sessions: OrderedDict[_Key, Session] = OrderedDict()
        self._opening: dict[_Key, asyncio.Task[Session]] = {}

    def names(self, client: Client) -> list[str]:
        return [server.name for server in self._servers.values() if server.serves(client)]

    async def all_tools(self, client: Client) -> list[McpTool]:
        """Return the tools of all servers that work."""
        found = await asyncio.gather(*(self._try_tools(client, name) for name in self.names(client)))
        return [tool for tools in found for tool in tools]

    async def tools(self, client: Client, server: str) -> list[McpTool]:
        """Return the tools of a server. Raises NotFound and McpError."""
        return (await self._session(client, server)).tools

    async def call(self, client: Client, server: str, name: str, arguments: dict[str, Any]) -> Message:
        """Raises NotFound and McpError."""
        session = await self._session(client, server)
        if not any(tool.name == name for tool in session.tools):
            raise NotFound(f"tool '{name:.64}' does not exist")
        return await session.call(name, arguments)

    async def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        sessions = list(self._sessions.values())
        self._sessions.clear()
        await asyncio.gather(*(session.transport.close() for session in sessions))

    async def _try_tools(self, client: Client, server: str) -> list[McpTool]:
        try:
            return await self.tools(client, server)
        except McpError as error:
            _log.warning("%s", error.message)
            return []

    async def _session(self, client: Client, name: str) -> Session:
        server, key = self._servers.get(name), (client.id, name)
        if server is None or not server.serves(client):
            raise NotFound(f"MCP server '{name:.64}' does not exist")
        session = self._sessions.get(key)
        if session is not None and session.transport.is_open:
            self._sessions.move_to_end(key)
            return session
        if key not in self._opening:
            task = self._opening[key] = asyncio.create_task(self._open(key, server))
            task.add_done_callback(lambda _: self._opening.pop(key))
            task.add_done_callback(
                lambda ended: ended.cancelled() or ended.exception()
            )  # its client may be gone
        return await asyncio.shield(self._opening[key])

    async def _open(self, key: _Key, server: McpServer) -> Session:
        if (lost := self._sessions.pop(key, None)) is not None:
            await lost.transport.close()
        await self._make_room()
        transport = await self._connect(server)
        session = Session(server.name, transport, server.timeout_s)
        try:
            await session.open()
        except BaseException:
            await transport.close()
            raise
        self._sessions[key] = session
        return session

    async def _connect(self, server: McpServer) -> Transport:
        if server.is_builtin and self._builtin is not None:
            return self._builtin()
        return await start_process(server) if server.command else _call(server)

    async def _make_room(self) -> None:
        while len(self._sessions) + len(self._opening) > _MAX_SESSIONS:
            idle = next((key for key, session in self._sessions.items() if session.is_idle), None)
            if idle is None:
                raise Unavailable("too many MCP servers are running")
            with contextlib.suppress(McpError):
                await self._sessions.pop(idle).transport.close()


def _call(server: McpServer) -> Transport:
    from corral.mcp.http import HttpTransport

    return HttpTransport(server)
