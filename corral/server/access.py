"""Access control: API keys, the clients they belong to, and the paths that need no key.

Only digests of keys are kept. Comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.api.route_table import RouteTable
from corral.core.client import Client, ClientLimits
from corral.core.errors import CorralError, Unauthorized
from corral.core.key_role import KeyRole, Permission
from corral.core.settings import ServerSettings
from corral.generate.caller import caller_in, change_caller
from corral.generate.key_limits import KeyLimits
from corral.server.key_file import read_key_file

_READING = ("GET", "HEAD")
_BEARER = b"bearer "
_ASKING = [(b"www-authenticate", b"Bearer")]
_NAMED = re.compile(
    r"([A-Za-z0-9._-]{1,64})(?:=(\d{1,4}(?:\.\d{1,3})?))?"
    rf"((?:,(?:(?:tpm|tpd|concurrent)=\d{{1,12}}|{'|'.join(role.value for role in KeyRole)}))*):(.+)"
)
_LIMITS = {"tpm": "tokens_per_minute", "tpd": "tokens_per_day", "concurrent": "concurrent"}
_TENANT_BYTES = 16
_log = logging.getLogger("corral")


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    client: Client
    has_role: bool = False  # given in the file


class Keys:
    """The valid API keys; without any, requests need none. `reload` replaces those of the file.

    If none has a role, the first is the administrator's: a server with one key can be changed with it.
    """

    def __init__(self, server: ServerSettings) -> None:
        """Read the keys. Raises CorralError if the options or the file contain no key."""
        given = [key.strip() for text in server.api_keys for key in text.split(",") if key.strip()]
        if server.api_keys and not given:
            raise CorralError("--api-key is empty; give a key, or omit the option")
        self._shares = server.cache_share
        self._given = [self._key(key, _identity(key), f"key{i}") for i, key in enumerate(given, 1)]
        self._file = server.api_key_file
        self._keys = self._read()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def reload(self) -> None:
        """Read the file again. Raises CorralError, and keeps the old keys, if that fails."""
        self._keys = self._read()

    def find(self, shown: list[bytes]) -> Client | None:
        digests = [_digest(key) for key in shown]
        found: Client | None = None
        for key in self._keys:  # compare all, even after a match
            for digest in digests:
                if hmac.compare_digest(key.digest, digest):
                    found = key.client
        return found

    def renew(self, client: Client) -> Client:
        """Return a client of an earlier time with what its keys may do now; without a key it is a user."""
        known = [key.client for key in self._keys if key.client.id == client.id]
        if not known:
            return replace(client, role=KeyRole.USER, tenant=self._tenant(client.id))
        now = next((each for each in known if each.role is client.role), known[0])
        return replace(now, is_batch=client.is_batch)

    def _read(self) -> list[_Key]:
        lines = read_key_file(self._file) if self._file else []
        numbered = enumerate(lines, len(self._given) + 1)
        keys = self._given + [key for i, line in numbered for key in self._parse(line, f"key{i}")]
        if not keys or any(key.has_role for key in keys):
            return keys
        first = keys[0].client
        _log.info("no API key has a role: the first one, '%(name)s', is 'admin'", {"name": first.name})
        return [_with_role(key, KeyRole.ADMIN) if key.client.id == first.id else key for key in keys]

    def _parse(self, line: str, name: str) -> list[_Key]:
        """Parse a line of the key file. compat: --api-key-file: a whole line is a key, even if it contains a
        colon."""
        found = _NAMED.fullmatch(line)
        if found is None:
            return [self._key(line, _identity(line), name)]
        weight = float(found[2] or 1)
        if not weight:
            raise CorralError(f"--api-key-file: the weight of '{found[1]}' must be greater than 0")
        words = [word.partition("=") for word in found[3].split(",") if word]
        limits = ClientLimits(**{_LIMITS[name]: int(value) for name, equals, value in words if equals})
        roles = [KeyRole(name) for name, equals, _ in words if not equals]
        if len(roles) > 1:
            raise CorralError(f"--api-key-file: '{found[1]}' has {len(roles)} roles; a key has one")
        keys = [self._key(key, found[1], found[1], weight) for key in (line, found[4])]
        keys = [replace(key, client=replace(key.client, limits=limits)) for key in keys]
        return [replace(_with_role(key, roles[0]), has_role=True) for key in keys] if roles else keys

    def _key(self, key: str, identity: str, name: str, weight: float = 1.0) -> _Key:
        return _Key(_digest(key.encode()), Client(name, identity, weight, self._tenant(identity)))

    def _tenant(self, identity: str) -> bytes:
        return b"" if self._shares else _digest(identity.encode())[:_TENANT_BYTES]


class AccessControl:
    """ASGI middleware before all routes: refuse requests without a valid key, or beyond its role.

    Keys at their limits are refused here too, before a body is read or a model is loaded; `Runner`
    enforces them.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        limits: KeyLimits,
        table: RouteTable,
        has_page: bool,
    ) -> None:
        """`has_page`: paths without a route are files, at most: browsers load pages without a key."""
        self._app = app
        self._keys = keys
        self._limits = limits
        self._table = table
        self._has_page = has_page

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        client = self._keys.find(_shown(scope))
        if client is None:
            if not self._lets_in(scope):
                return ErrorAnswer(Unauthorized(), _ASKING)(scope, receive, send)
            change_caller(scope, is_anonymous=True)
            return self._app(scope, receive, send)
        caller_in(scope).record.client = client
        return self._run(client, self._needed(scope), scope, receive, send)

    def _run(
        self, client: Client, needed: Permission | None, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        app = self._app
        try:
            if needed is not None:
                client.require(needed, f"{scope['method']} {scope['path']}")
            if needed is Permission.GENERATE:
                self._limits.check(client)
        except CorralError as error:
            app = ErrorAnswer(error)
        if needed is Permission.GENERATE and client.limits:
            return app(scope, receive, self._with_limits(client, send))
        return app(scope, receive, send)

    def _with_limits(self, client: Client, send: Send) -> Send:
        def send_with_limits(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._limits.headers(client)]
            return send(message)

        return send_with_limits

    def _needed(self, scope: Scope) -> Permission | None:
        policy = self._table.policy(scope)
        return policy.permission if policy is not None else None

    def _lets_in(self, scope: Scope) -> bool:
        if scope["method"] == "OPTIONS":
            return True  # compat: browsers send preflights without a key; no route answers more to OPTIONS
        if scope["method"] not in _READING:
            return False
        is_file = self._has_page and not self._table.methods(scope)
        return is_file or self._needed(scope) is Permission.PUBLIC


def _with_role(key: _Key, role: KeyRole) -> _Key:
    return replace(key, client=replace(key.client, role=role))


def _shown(scope: Scope) -> list[bytes]:
    """Return the keys of a request, from the headers `Authorization` and `X-Api-Key`."""
    headers = dict(scope["headers"])
    authorization = headers.get(b"authorization", b"")
    shown = [authorization[len(_BEARER) :]] if authorization[: len(_BEARER)].lower() == _BEARER else []
    return [key.strip() for key in (*shown, headers.get(b"x-api-key", b"")) if key]


def _identity(key: str) -> str:
    """Return the identity of a client without a name."""
    return hashlib.sha256(key.encode()).hexdigest()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
