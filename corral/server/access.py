"""Who may come in: keys and the clients behind them, and the few paths that need none.

Only digests of keys are kept, and none is compared in a time that tells how much of it was right.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.api.trust import mark_anonymous
from corral.core.client import Client
from corral.core.errors import CorralError, Unauthorized
from corral.core.settings import ServerSettings
from corral.server.key_file import read_key_file
from corral.telemetry.scope import record_in

# What strangers may read. `/props` and the models are told to them without paths and prompts.
PUBLIC_PATHS = ("/health", "/v1/health", "/ready", "/models", "/v1/models", "/props")
_READING = ("GET", "HEAD")
_BEARER = b"bearer "
_ASKING = [(b"www-authenticate", b"Bearer")]
_NAMED = re.compile(r"([A-Za-z0-9._-]{1,64})(?:=(\d{1,4}(?:\.\d{1,3})?))?:(.+)")
_TENANT_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    client: Client


class Keys:
    """Mutable: the keys that requests may show; without any there is nothing to show."""

    def __init__(self, server: ServerSettings) -> None:
        """Raises CorralError where options or the file protect nothing."""
        given = [key.strip() for text in server.api_keys for key in text.split(",") if key.strip()]
        if server.api_keys and not given:
            raise CorralError("--api-key is empty; give a key, or leave it out")
        self._shares = server.cache_share
        self._given = [self._key(key, _identity(key), f"key{i}") for i, key in enumerate(given, 1)]
        self._file = server.api_key_file
        self._keys = self._read()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def reload(self) -> None:
        """Read the file again; raises CorralError, and nothing has changed, if that is not possible."""
        self._keys = self._read()

    def find(self, shown: list[bytes]) -> Client | None:
        digests = [_digest(key) for key in shown]
        found: Client | None = None
        for key in self._keys:  # all are compared, also behind one that is right
            for digest in digests:
                if hmac.compare_digest(key.digest, digest):
                    found = key.client
        return found

    def _read(self) -> list[_Key]:
        lines = read_key_file(self._file) if self._file else []
        numbered = enumerate(lines, len(self._given) + 1)
        return self._given + [key for i, line in numbered for key in self._parse(line, f"key{i}")]

    def _parse(self, line: str, name: str) -> list[_Key]:
        """compat: --api-key-file: a whole line is a key, also if there is a colon in it."""
        found = _NAMED.fullmatch(line)
        if found is None:
            return [self._key(line, _identity(line), name)]
        weight = float(found[2] or 1)
        if not weight:
            raise CorralError(f"--api-key-file: the weight of '{found[1]}' must be more than 0")
        return [self._key(key, found[1], found[1], weight) for key in (line, found[3])]

    def _key(self, key: str, identity: str, name: str, weight: float = 1.0) -> _Key:
        tenant = b"" if self._shares else _digest(identity.encode())[:_TENANT_BYTES]
        return _Key(_digest(key.encode()), Client(name, identity, weight, tenant))


class AccessControl:
    """ASGI middleware, in front of all routes: a request without a key ends here, whatever it is about."""

    def __init__(self, app: ASGIApp, keys: Keys, is_public: Callable[[Scope], bool]) -> None:
        """`is_public`: what else strangers may have, beside `PUBLIC_PATHS`."""
        self._app = app
        self._keys = keys
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            client = self._keys.find(_shown(scope))
            if client is not None:
                record_in(scope).client = client
            elif self._lets_in(scope):
                mark_anonymous(scope)
            else:
                await ErrorAnswer(Unauthorized(), _ASKING)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _lets_in(self, scope: Scope) -> bool:
        if scope["method"] == "OPTIONS":
            return True  # compat: browsers ask what they may send without a key, and no route answers more
        return scope["method"] in _READING and (scope["path"] in PUBLIC_PATHS or self._is_public(scope))


def _shown(scope: Scope) -> list[bytes]:
    """The keys of a request, in either of two headers."""
    headers = dict(scope["headers"])
    authorization = headers.get(b"authorization", b"")
    shown = [authorization[len(_BEARER) :]] if authorization[: len(_BEARER)].lower() == _BEARER else []
    return [key.strip() for key in (*shown, headers.get(b"x-api-key", b"")) if key]


def _identity(key: str) -> str:
    """Of a client without a name."""
    return hashlib.sha256(key.encode()).hexdigest()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
