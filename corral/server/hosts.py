"""Names that clients may know the server by.

A page of a stranger can have its own name lead to this machine, and then talk to whoever listens here as if
that were its own server. The `Host` header gives it away. Keys are another matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.core.errors import CorralError, Forbidden, InvalidRequest
from corral.core.settings import ServerSettings
from corral.server.listen import Reach, is_loopback, parse_address, without_brackets
from corral.server.peers import is_private_only

ANY = "*"
_ENDING = "*."
_LOCAL = "localhost"
# Domains that no registry sells: RFC 6761, 6762 (appendix G), 8375, and ICANN's .internal.
_PRIVATE = (".local", ".internal", ".home.arpa", ".lan", ".home", ".corp", ".intranet", ".private")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^\s\[\]:/?#@\\,*]{1,255})(?::([0-9]{0,5}))?")
_MAX_SHOWN = 100


class Host(NamedTuple):
    name: str  # in small letters, an IPv6 address without brackets
    port: int | None = None


def parse_host(text: str) -> Host | None:
    """`NAME`, or `NAME:PORT`; None if it is neither."""
    found = _HOST.fullmatch(text.lower())
    if found is None:
        return None
    name = without_brackets(found[1])
    return Host(name.removesuffix("."), int(found[2]) if found[2] else None)


def is_local_name(name: str) -> bool:
    """Whether it can only be this machine, wherever it is asked for."""
    return name == _LOCAL or name.endswith("." + _LOCAL) or is_loopback(name)


def is_private_name(name: str) -> bool:
    """Whether no stranger can have public DNS lead it here: an address, a name without a dot, or one in a
    domain of private networks."""
    is_name = bool(name) and ("." not in name or name.endswith(_PRIVATE))
    return is_name or parse_address(name) is not None


class HostNames:
    """Beside those of the machine itself; `*.example.com` is every name that ends so."""

    def __init__(self, names: Iterable[str], admits_private: bool = False) -> None:
        """Raises CorralError for what can be no name. `admits_private`: names of `is_private_name` too."""
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
                    f"--allowed-hosts: '{text}' is no name; give it as example.com or *.example.com"
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
    """What is let in where the server listens; raises CorralError for what can be no name."""
    admits_private = is_private_only(server, reach) and not server.allowed_hosts
    if not (admits_private or reach is Reach.LOCAL or server.allowed_hosts):
        return HostNames((ANY,))
    own = [server.host] if reach is not Reach.UNIX and _parse_name(server.host) else []
    return HostNames((*own, *server.allowed_hosts), admits_private)


class HostControl:
    """ASGI middleware, in front of everything that answers."""

    def __init__(self, app: ASGIApp, names: HostNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._problem(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await ErrorAnswer(error)(scope, receive, send)

    def _problem(self, scope: Scope) -> CorralError | None:
        values = [value for name, value in scope["headers"] if name == b"host"]
        if not values and scope["http_version"] == "1.0":
            return None
        if len(values) != 1:
            return InvalidRequest("a request has one Host header")
        text = values[0].decode("latin-1")
        host = parse_host(text)
        if host is None and text and self._names.is_any:
            return InvalidRequest("the Host header holds no name of a host")
        if self._names.admits(host.name if host is not None else ""):
            return None
        return Forbidden(
            f"this server is not known as '{text[:_MAX_SHOWN]}'; if it should be, start it with "
            "--allowed-hosts and this name"
        )


def _parse_name(text: str) -> str:
    """As an option has it, where IPv6 needs no brackets; nothing if it is no name."""
    host = parse_host(f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text)
    return host.name if host is not None else ""
