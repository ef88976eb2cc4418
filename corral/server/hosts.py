"""Check the `Host` header against the names that the server is known by.

A malicious page can let its own domain resolve to this machine and then send requests here as same-origin
(DNS rebinding). The `Host` header reveals it. API keys are a separate check.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Iterable
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.core.address import parse_address
from corral.core.errors import CorralError, Forbidden, InvalidRequest
from corral.core.settings import ServerSettings
from corral.server.listen import SOCKET_SUFFIX, Reach, is_loopback, without_brackets
from corral.server.peers import is_private_only

ANY = "*"
_ENDING = "*."
_LOCAL = "localhost"
# Domains that are not publicly registered: RFC 6761, 6762 (appendix G), 8375, and ICANN's .internal.
_PRIVATE = (".local", ".internal", ".home.arpa", ".lan", ".home", ".corp", ".intranet", ".private")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^\s\[\]:/?#@\\,*]{1,255})(?::([0-9]{0,5}))?")
_MAX_SHOWN = 100
_MAX_KNOWN = 64  # values whose verdict is remembered


class Host(NamedTuple):
    name: str  # lower case; an IPv6 address without brackets
    port: int | None = None


def parse_host(text: str) -> Host | None:
    """Parse `NAME` or `NAME:PORT`; None if it is neither."""
    found = _HOST.fullmatch(text.lower())
    if found is None:
        return None
    name = without_brackets(found[1])
    return Host(name.removesuffix("."), int(found[2]) if found[2] else None)


def is_local_name(name: str) -> bool:
    """Whether the name always means this machine."""
    return name == _LOCAL or name.endswith("." + _LOCAL) or is_loopback(name)


def is_private_name(name: str) -> bool:
    """Whether public DNS cannot resolve the name: an address, a name without a dot, or one in a domain of
    private networks."""
    is_name = bool(name) and ("." not in name or name.endswith(_PRIVATE))
    return is_name or parse_address(name) is not None


class HostNames:
    """Allowed names in addition to those of the machine itself; `*.example.com` matches subdomains."""

    def __init__(self, names: Iterable[str], admits_private: bool = False) -> None:
        """Raises CorralError for an invalid name. `admits_private`: also allow names of `is_private_name`."""
        self._admits_private = admits_private
        self._names: set[str] = set()
        self._endings: list[str] = []
        self.is_any = False
        for text in names:
            is_ending = text.startswith(_ENDING)
            name = _parse_name(text.removeprefix(_ENDING))
            if text == ANY:
                self.is_any = True
            elif not name:
                raise CorralError(
                    f"--allowed-hosts: '{text}' is not a host name; use example.com or *.example.com"
                )
            elif is_ending:
                self._endings.append("." + name)
            else:
                self._names.add(name)

    def admits(self, name: str) -> bool:
        return (
            self.is_any
            or is_local_name(name)
            or (self._admits_private and is_private_name(name))
            or name in self._names
            or any(name.endswith(ending) for ending in self._endings)
        )


def allowed_names(server: ServerSettings, reach: Reach) -> HostNames:
    """Return the names that are allowed for where the server listens. Raises CorralError for an invalid
    one."""
    admits_private = is_private_only(server, reach) and not server.allowed_hosts
    if not (admits_private or reach is Reach.LOCAL or server.allowed_hosts):
        return HostNames((ANY,))
    own = [host for host in server.hosts if not host.endswith(SOCKET_SUFFIX) and _parse_name(host)]
    return HostNames((*own, *server.allowed_hosts), admits_private)


class HostControl:
    """ASGI middleware before the application: refuse other host names."""

    def __init__(self, app: ASGIApp, names: HostNames) -> None:
        self._app = app
        self._names = names
        self._problem_of = functools.lru_cache(maxsize=_MAX_KNOWN)(self._find_problem)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        error = self._problem(scope) if scope["type"] == "http" else None
        return (self._app if error is None else ErrorAnswer(error))(scope, receive, send)

    def _problem(self, scope: Scope) -> CorralError | None:
        values = [value for name, value in scope["headers"] if name == b"host"]
        if not values and scope["http_version"] == "1.0":
            return None
        if len(values) != 1:
            return InvalidRequest("a request must have exactly one Host header")
        return self._problem_of(values[0])

    def _find_problem(self, value: bytes) -> CorralError | None:
        text = value.decode("latin-1")
        host = parse_host(text)
        if host is None and text and self._names.is_any:
            return InvalidRequest("the Host header is not a valid host name")
        if self._names.admits(host.name if host is not None else ""):
            return None
        return Forbidden(
            f"the host name '{text[:_MAX_SHOWN]}' is not allowed; to allow it, start the server with "
            "--allowed-hosts and this name"
        )


def _parse_name(text: str) -> str:
    """Parse a name of an option, where IPv6 needs no brackets; empty if invalid."""
    host = parse_host(f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text)
    return host.name if host is not None else ""
