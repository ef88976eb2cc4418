"""The built-in server `web`: its tool `read_url` reads public pages, if the operator allows it.

It is an MCP server inside this process, so that permissions, approvals and limits are those of all others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from corral.core.errors import CorralError
from corral.mcp.config import McpServer
from corral.mcp.transport import Message

if TYPE_CHECKING:
    from corral.media.remote import RemoteMedia

WEB = "web"
_TOOL = "read_url"
_MAX_URL_CHARS = 8192
_MAX_CHARS = 20_000  # of one result
_MAX_START = 1 << 30
_DEFINITION = {
    "name": _TOOL,
    "description": "Reads a web page or another text at a public http(s) address, and returns its text. "
    "Long texts come in pieces: `start` is the first character to return.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "url": {"type": "string", "maxLength": _MAX_URL_CHARS},
            "start": {"type": "integer", "minimum": 0, "maximum": _MAX_START},
        },
        "required": ["url"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": True},
}


def web_server() -> McpServer:
    return McpServer(WEB, is_builtin=True)


class WebTransport:
    """Answers the messages of a session itself."""

    is_open = True

    def __init__(self, remote: RemoteMedia) -> None:
        self._remote = remote

    async def exchange(self, message: Message) -> Message | None:
        if "id" not in message:
            return None
        match message["method"]:
            case "tools/list":
                result: Message = {"tools": [_DEFINITION]}
            case "tools/call":
                result = await self._call(message["params"]["arguments"])
            case _:
                result = {}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def close(self) -> None:
        pass

    async def _call(self, arguments: dict[str, Any]) -> Message:
        url, start = arguments.get("url"), arguments.get("start", 0)
        if not isinstance(url, str) or len(url) > _MAX_URL_CHARS:
            return _failed("'url' must be a string")
        if type(start) is not int or not 0 <= start <= _MAX_START:
            return _failed("'start' must be a number of characters")
        from corral.media.page import page_text  # few servers need it

        try:
            page = await self._remote.fetch_page(url)
            text = await asyncio.to_thread(page_text, page.body, page.content_type)
        except CorralError as error:
            return _failed(error.message)
        return _result(_piece(text, start))


def _piece(text: str, start: int) -> str:
    end = start + _MAX_CHARS
    if start == 0 and end >= len(text):
        return text or "(the page has no text)"
    if start >= len(text):
        return f"(the text has only {len(text)} characters)"
    rest = f"; go on with start={end}" if end < len(text) else ""
    return f"{text[start:end]}\n[characters {start} to {min(end, len(text))} of {len(text)}{rest}]"


def _failed(reason: str) -> Message:
    return {**_result(f"The address could not be read: {reason}."), "isError": True}


def _result(text: str) -> Message:
    return {"content": [{"type": "text", "text": text}]}
