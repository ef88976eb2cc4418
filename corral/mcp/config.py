"""Read `--mcp-servers-config` and `--mcp-servers-json`: the MCP servers that this server may start or call.

They have the usual form,
`{"mcpServers": {name: {"command", "args", "env", "cwd"} or {"url", "headers"}}}`. An entry may also have
`timeout_ms`, `disabled`, and `keys`: the names of the API keys that may use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import orjson

from corral.core.client import Client
from corral.core.errors import CorralError

OPTION = "--mcp-servers-config"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_SERVERS = 64
_TIMEOUT_MS = 30_000
_MAX_TIMEOUT_MS = 600_000


_Text = Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]
_SomeText = Annotated[str, msgspec.Meta(pattern=r"\A[^\0]+\Z")]


class _Entry(msgspec.Struct):
    """A server in the file."""

    command: _SomeText | None = None
    args: list[_Text] = []
    env: dict[str, str] = {}
    cwd: _SomeText | None = None
    url: _SomeText | None = None
    headers: dict[str, str] = {}
    timeout_ms: Annotated[float, msgspec.Meta(gt=0, le=_MAX_TIMEOUT_MS)] = _TIMEOUT_MS
    keys: list[_Text] | None = None


@dataclass(frozen=True, slots=True)
class McpServer:
    """`command`: of a process that speaks over its pipes; empty: it is called at `url`, or `is_builtin`.
    `keys`: None: all."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = _TIMEOUT_MS / 1000
    keys: frozenset[str] | None = None
    is_builtin: bool = False

    def serves(self, client: Client) -> bool:
        return self.keys is None or client.name in self.keys


def read_servers(path: str, text: str) -> tuple[McpServer, ...]:
    """Return the servers of a file and those of a text, which replace servers of the same name."""
    found = (*(read_config(path) if path else ()), *(parse_config(text) if text else ()))
    return tuple({server.name: server for server in found}.values())


def read_config(path: str) -> tuple[McpServer, ...]:
    """Raises CorralError if the file cannot be read or is invalid."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise CorralError(f"{OPTION} '{path}' cannot be read: {error.strerror}") from None
    try:
        return parse_config(text)
    except CorralError as error:
        raise CorralError(f"{OPTION} '{path}': {error.message}") from None


def parse_config(text: bytes | str) -> tuple[McpServer, ...]:
    """Raises CorralError."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CorralError(f"it is not valid JSON: {error}") from None
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict) or len(servers) > _MAX_SERVERS:
        raise CorralError(f"it must have an object 'mcpServers' with at most {_MAX_SERVERS} servers")
    return tuple(_server(name, given) for name, given in servers.items() if not _is_disabled(given))


def _is_disabled(given: Any) -> bool:
    return isinstance(given, dict) and given.get("disabled") is True


def _server(name: str, given: Any) -> McpServer:
    if not _NAME.fullmatch(name):
        raise CorralError(f"the name '{name:.64}' must be 1 to 64 letters, digits, '_' or '-'")
    try:
        entry = msgspec.convert(given, _Entry)
    except msgspec.ValidationError as error:
        raise CorralError(f"the server '{name}' is invalid: {error}") from None
    if (entry.command is None) == (entry.url is None):
        raise CorralError(f"the server '{name}' must have either 'command' or 'url'")
    if entry.url is not None and not _is_url(entry.url):
        raise CorralError(f"the server '{name}' has a 'url' that is not an address of HTTP")
    return McpServer(
        name=name,
        command=() if entry.command is None else (entry.command, *entry.args),
        env=entry.env,
        cwd=entry.cwd,
        url=entry.url or "",
        headers=entry.headers,
        timeout_s=entry.timeout_ms / 1000,
        keys=None if entry.keys is None else frozenset(entry.keys),
    )


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname)
