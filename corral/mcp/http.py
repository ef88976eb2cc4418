"""An MCP server that is called over streamable HTTP, at an address that the operator has configured."""

from __future__ import annotations

import httpx
import orjson

from corral.core.errors import McpError
from corral.mcp.config import McpServer
from corral.mcp.transport import MAX_MESSAGE_BYTES, Message

_SESSION = "mcp-session-id"
_ACCEPTED = {"accept": "application/json, text/event-stream"}


class HttpTransport:
    """Mutable: the session that the server has opened."""

    def __init__(self, server: McpServer) -> None:
        self._name = server.name
        self._url = server.url
        self._client = httpx.AsyncClient(
            headers={**server.headers, **_ACCEPTED}, timeout=server.timeout_s, follow_redirects=False
        )
        self._more: dict[str, str] = {}
        self.is_open = True

    async def exchange(self, message: Message) -> Message | None:
        try:
            async with self._client.stream("POST", self._url, json=message, headers=self._more) as response:
                if _SESSION in response.headers:
                    self._more[_SESSION] = response.headers[_SESSION]
                if not response.is_success:
                    self.is_open = response.status_code != 404  # the session has ended
                    raise self._failed(f"returned status {response.status_code}")
                if "id" not in message:
                    return None
                answer = await self._read(response, message["id"])
        except httpx.HTTPError:
            self.is_open = False
            raise self._failed("cannot be reached") from None
        result = answer.get("result")
        if message["method"] == "initialize" and isinstance(result, dict):
            self._more["mcp-protocol-version"] = str(result.get("protocolVersion", ""))
        return answer

    async def close(self) -> None:
        self.is_open = False
        await self._client.aclose()

    async def _read(self, response: httpx.Response, id: object) -> Message:
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        buffer = bytearray()
        async for chunk in response.aiter_bytes():
            buffer += chunk
            if len(buffer) > MAX_MESSAGE_BYTES:
                raise self._failed("sent too large a response")
            while is_stream and (end := _event_end(buffer)):
                event = bytes(buffer[:end])
                del buffer[:end]
                if (found := self._parse(_data_of(event), id)) is not None:
                    return found
        found = self._parse(_data_of(bytes(buffer)) if is_stream else bytes(buffer), id)
        if found is None:
            raise self._failed("did not answer")
        return found

    def _parse(self, data: bytes, id: object) -> Message | None:
        if not data.strip():
            return None
        try:
            message = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise self._failed("did not answer with JSON") from None
        return message if isinstance(message, dict) and message.get("id") == id else None

    def _failed(self, reason: str) -> McpError:
        return McpError(f"the MCP server '{self._name}' {reason}")


def _event_end(buffer: bytearray) -> int:
    """Return the length of the first event; 0: it is not complete."""
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := buffer.find(mark)) >= 0]
    return min(ends, default=0)


def _data_of(event: bytes) -> bytes:
    return b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
