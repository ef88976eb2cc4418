"""What the owner of an API key may do: an operation needs a permission, and roles have permissions."""

from __future__ import annotations

import enum


class Permission(str, enum.Enum):
    """What an operation needs."""

    PUBLIC = "public"  # to be read without a key
    ANY = "any"  # a key
    READ = "read"  # what the server and its clients are doing
    USE = "use"  # documents, streams and tools of the key; tokens
    GENERATE = "generate"  # tasks for the engine, which limits of keys count
    CHANGE = "change"  # what others get


_ALL_KEYS = frozenset((Permission.PUBLIC, Permission.ANY))


class KeyRole(str, enum.Enum):
    """The value is the word in `--api-key-file`."""

    ADMIN = "admin"
    USER = "user"
    INFERENCE_ONLY = "inference-only"
    READ_ONLY = "read-only"

    def may(self, permission: Permission) -> bool:
        return permission in _PERMISSIONS[self]


_PERMISSIONS: dict[KeyRole, frozenset[Permission]] = {
    KeyRole.ADMIN: frozenset(Permission),
    KeyRole.USER: frozenset(Permission) - {Permission.CHANGE},
    KeyRole.INFERENCE_ONLY: _ALL_KEYS | {Permission.USE, Permission.GENERATE},
    KeyRole.READ_ONLY: _ALL_KEYS | {Permission.READ},
}


def roles_with(permission: Permission) -> tuple[KeyRole, ...]:
    return tuple(role for role in KeyRole if role.may(permission))
