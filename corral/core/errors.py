"""Every error a client can cause or meet, as one tree.

    CorralError                 500  server_error
      NonFiniteLogits
      EngineDied
      InvalidRequest            400  invalid_request_error
        ContextExceeded         400  exceed_context_size_error
        UnknownModel
        TooLarge                413  invalid_request_error
      Unauthorized              401  authentication_error
      Forbidden                 403  permission_error
        FeatureDisabled         403  feature_disabled
        ForeignSlot
      NotFound                  404  not_found_error
        NoSuchSlot
      Conflict                  409  conflict_error
      TooManyRequests           429  rate_limit_error
      NotSupported              501  not_supported_error
      McpError                  502  mcp_error
      Unavailable               503  unavailable_error
      InsufficientStorage       507  insufficient_storage_error

Layers raise these; only the HTTP edge turns them into bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as a value that crosses from the engine to the front. `kinds`: its class, then its bases."""

    kinds: list[str]
    message: str
    details: dict[str, Any] = {}


class CorralError(Exception):
    """`retry_after_s`: when to retry, if known. `details`: more fields for the client."""

    status = 500
    type = "server_error"

    def __init__(self, message: str, *, retry_after_s: int | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details

    def info(self) -> ErrorInfo:
        kinds = [kind.__name__ for kind in type(self).__mro__ if issubclass(kind, CorralError)]
        return ErrorInfo(kinds, self.message, self.details)

    @staticmethod
    def from_info(info: ErrorInfo) -> CorralError:
        """Return an error of the same class, or of its nearest base that this process has imported."""
        known = {kind.__name__: kind for kind in error_classes()}
        kind = next(known[name] for name in info.kinds if name in known)
        error = kind.__new__(kind)
        CorralError.__init__(error, info.message, **info.details)
        return error


class NonFiniteLogits(CorralError):
    """The evaluation produced infinity or NaN; the values in the KV cache may affect other requests."""

    def __init__(self) -> None:
        super().__init__("the model produced logits that are not finite")


class EngineDied(CorralError):
    """The engine process ended while it loaded the model, without a reason of its own."""


class InvalidRequest(CorralError):
    """The request is invalid. `field` names the field at fault and is returned as `param`."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, field: str | None = None, **details: Any) -> None:
        if field is not None:
            message = f"Field '{field}': {message}"
            details = {"param": field, **details}
        super().__init__(message, **details)


class ContextExceeded(InvalidRequest):
    type = "exceed_context_size_error"

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), "
            "try increasing it with --ctx-size",
            n_prompt_tokens=n_prompt_tokens,
            n_ctx=n_ctx,
        )


class UnknownModel(InvalidRequest):
    """No model has the name in the request, among several."""

    def __init__(self, name: str) -> None:
        super().__init__(f"model '{name:.256}' not found")


class TooLarge(InvalidRequest):
    status = 413


class Unauthorized(CorralError):
    status = 401
    type = "authentication_error"

    def __init__(self) -> None:
        super().__init__("Invalid API Key")


class Forbidden(CorralError):
    status = 403
    type = "permission_error"


class FeatureDisabled(Forbidden):
    """An endpoint that is off unless an option turns it on."""

    type = "feature_disabled"


class ForeignSlot(Forbidden):
    """The slot is in use by another API key, or holds what was evaluated for it."""

    def __init__(self, slot: int) -> None:
        super().__init__(
            f"slot {slot} holds the state of another API key; use another slot, or send a completion with "
            f'"id_slot": {slot} first, which takes the slot over'
        )


class NotFound(CorralError):
    status = 404
    type = "not_found_error"


class NoSuchSlot(NotFound):
    def __init__(self, slot: int, n_slots: int) -> None:
        super().__init__(f"slot {slot} does not exist; slots are numbered from 0 to {n_slots - 1}")


class Conflict(CorralError):
    status = 409
    type = "conflict_error"


class TooManyRequests(CorralError):
    """A limit of the API key is reached."""

    status = 429
    type = "rate_limit_error"


class NotSupported(CorralError):
    status = 501
    type = "not_supported_error"


class McpError(CorralError):
    """An MCP server failed, or returned an error. The message is the server's, or says what happened."""

    status = 502
    type = "mcp_error"


class Unavailable(CorralError):
    status = 503
    type = "unavailable_error"


class InsufficientStorage(CorralError):
    status = 507
    type = "insufficient_storage_error"


def error_classes(kind: type[CorralError] = CorralError) -> Iterator[type[CorralError]]:
    """Yield the whole tree of imported errors."""
    yield kind
    for child in kind.__subclasses__():
        yield from error_classes(child)
