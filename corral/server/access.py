"""Who may come in: keys, and the few paths that need none.

Only digests of keys are kept, and none is compared in a time that tells how much of it was right.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.body import JsonResponse, render_error
from corral.api.trust import mark_stranger
from corral.core.errors import CorralError, Unauthorized
from corral.core.settings import ServerSettings

# What strangers may read. `/props` and the models are told to them without paths and prompts.
PUBLIC_PATHS = ("/health", "/v1/health", "/models", "/v1/models", "/props")
_READING = ("GET", "HEAD")
_BEARER = b"bearer "


class Keys:
    """The keys that requests may show; without any there is nothing to show."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admits(self, shown: list[bytes]) -> bool:
        """Whether one of them is right."""
        digests = [_digest(key) for key in shown]
        # All are compared, also behind one that is right.
        return sum(hmac.compare_digest(ours, theirs) for ours in self._digests for theirs in digests) > 0


def read_keys(server: ServerSettings) -> Keys:
    """All keys that options and their file name; raises CorralError where they protect nothing."""
    keys = [key.strip() for text in server.api_keys for key in text.split(",")]
    if server.api_keys and not any(keys):
        raise CorralError("--api-key is empty; give a key, or leave it out")
    if server.api_key_file:
        keys += _read_file(server.api_key_file)
    return Keys([key for key in keys if key])


class AccessControl:
    """ASGI middleware, in front of all routes: a request without a key ends here, whatever it is about."""

    def __init__(self, app: ASGIApp, keys: Keys, is_public: Callable[[Scope], bool]) -> None:
        """`is_public`: what else strangers may have, beside `PUBLIC_PATHS`."""
        self._app = app
        self._keys = keys
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._keys.admits(_shown(scope)):
            if not self._lets_in(scope):
                error = Unauthorized()
                headers = {"www-authenticate": "Bearer"}
                await JsonResponse(render_error(error), error.status, headers)(scope, receive, send)
                return
            mark_stranger(scope)
        await self._app(scope, receive, send)

    def _lets_in(self, scope: Scope) -> bool:
        if scope["method"] == "OPTIONS":
            return True  # compat: browsers ask what they may send without a key, and no route answers more
        return scope["method"] in _READING and (scope["path"] in PUBLIC_PATHS or self._is_public(scope))


def _read_file(path: str) -> list[str]:
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CorralError(f"--api-key-file '{path}' cannot be read: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not keys:
        raise CorralError(f"--api-key-file '{path}' holds no key; write one into each line")
    return keys


def _shown(scope: Scope) -> list[bytes]:
    """The keys of a request, in either of two headers."""
    headers = dict(scope["headers"])
    authorization = headers.get(b"authorization", b"")
    shown = [authorization[len(_BEARER) :]] if authorization[: len(_BEARER)].lower() == _BEARER else []
    return [key.strip() for key in (*shown, headers.get(b"x-api-key", b"")) if key]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
