"""What a session with an MCP server needs of the way to it."""

from __future__ import annotations

from typing import Any, Protocol

Message = dict[str, Any]

MAX_MESSAGE_BYTES = 4 << 20


class Transport(Protocol):
    @property
    def is_open(self) -> bool: ...

    async def exchange(self, message: Message) -> Message | None:
        """Send a message; return the answer to it, None if it has no id. Raises McpError."""
        ...

    async def close(self) -> None: ...


def reply_to(message: Message) -> Message | None:
    """Answer a request of the server: pings only, since nothing else was declared."""
    if "method" not in message or "id" not in message:
        return None
    if message["method"] == "ping":
        return {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    error = {"code": -32601, "message": "method not found"}
    return {"jsonrpc": "2.0", "id": message["id"], "error": error}
