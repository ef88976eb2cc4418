"""The sender of a request, as its API key identifies it."""

from __future__ import annotations

from dataclasses import dataclass

from corral.core.errors import Forbidden
from corral.core.key_role import KeyRole, Permission, roles_with


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may use; 0: any number."""

    tokens_per_minute: int = 0
    tokens_per_day: int = 0
    concurrent: int = 0  # tasks at a time

    def __bool__(self) -> bool:
        return bool(self.tokens_per_minute or self.tokens_per_day or self.concurrent)


NO_LIMITS = ClientLimits()


@dataclass(frozen=True, slots=True)
class Client:
    """The owner of an API key; without keys, all requests share one.

    `id` separates the clients that share the slots by `weight`. A KV state that was computed for one `tenant`
    is never reused for another. `is_batch`: all work of others comes first, also that of the same key.
    """

    name: str = ""
    id: str = ""
    weight: float = 1.0
    tenant: bytes = b""
    is_batch: bool = False
    limits: ClientLimits = NO_LIMITS
    role: KeyRole = KeyRole.USER

    @property
    def is_admin(self) -> bool:
        """Whether it sees the usage of all keys. Without keys all clients are one, which sees its own."""
        return self.role is KeyRole.ADMIN and bool(self.id)

    def require(self, permission: Permission, what: str, field: str | None = None) -> None:
        """Raise Forbidden, which names the role that is missing, unless the key may do it. `what`: the
        operation, or what the `field` of a request does."""
        if self.role.may(permission):
            return
        roles = " or ".join(f"'{role.value}'" for role in roles_with(permission))
        message = f"{what} needs an API key with the role {roles}; this one has '{self.role.value}'"
        if field is None:
            raise Forbidden(message)
        raise Forbidden(f"Field '{field}': {message}", param=field)


ANONYMOUS = Client(role=KeyRole.ADMIN)
