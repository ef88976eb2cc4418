"""Read `--mcp-servers-config` and `--mcp-servers-json`: the MCP servers that this server may start or call.

They have the usual form,
`{"mcpServers": {name: {"command", "args", "env", "cwd"} or {"url", "headers"}}}`. An entry may also have
`timeout_ms`, `disabled`, and `keys`: the names of the API keys that may use it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from corral.core.client import Client
from corral.core.errors import CorralError

OPTION = "--mcp-servers-config"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_SERVERS = 64
_TIMEOUT_MS = 30_000
_MAX_TIMEOUT_MS = 600_000


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
    if not isinstance(given, dict):
        raise _invalid(name, "must be an object")
    command, url = given.get("command"), given.get("url")
    if (command is None) == (url is None):
        raise _invalid(name, "must have either 'command' or 'url'")
    keys = given.get("keys")
    return McpServer(
        name=name,
        command=() if command is None else (_text(name, command), *_texts(name, given.get("args", []))),
        env=_mapping(name, given.get("env", {})),
        cwd=None if given.get("cwd") is None else _text(name, given["cwd"]),
        url="" if url is None else _url(name, url),
        headers=_mapping(name, given.get("headers", {})),
        timeout_s=_milliseconds(name, given.get("timeout_ms", _TIMEOUT_MS)) / 1000,
        keys=None if keys is None else frozenset(_texts(name, keys)),
    )


def _invalid(name: str, reason: str) -> CorralError:
    return CorralError(f"the server '{name}' {reason}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _invalid(name, "has a value that must be a string")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and "\0" not in each for each in value):
        raise _invalid(name, "has a value that must be a list of strings")
    return tuple(value)


def _mapping(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise _invalid(name, "has a value that must be an object of strings")
    return value


def _url(name: str, value: Any) -> str:
    parts = urlsplit(_text(name, value))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _invalid(name, "has a 'url' that is not an address of HTTP")
    return str(value)


def _milliseconds(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 < value <= _MAX_TIMEOUT_MS:
        raise _invalid(name, f"has a 'timeout_ms' that must be at most {_MAX_TIMEOUT_MS}")
    return float(value)
