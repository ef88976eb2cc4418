"""What a route says about itself to all that comes before it: access control, limits, the choice of a model,
streams that are followed, servers that share storage, batches."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corral.api.error_shape import ErrorShape
from corral.core.key_role import Permission


class Role(enum.Enum):
    """What a model must be able to do."""

    GENERATE = "generate"
    EMBED = "embed"
    RANK = "rank"
    ANY = "any"


class NamedIn(enum.Enum):
    """Where a request names its model. The query has precedence over the body."""

    BODY = "body"
    BODY_OR_NAME = "body, also as `name`"
    QUERY = "query"
    QUERY_ONLY = "query only"  # without it, the request is for the server


class Follow(enum.Enum):
    """Whether a stream continues without its client."""

    NEVER = enum.auto()
    EVENTS = enum.auto()  # with `--journal`: after `Last-Event-ID`
    CONVERSATION = enum.auto()  # also if the request has an `X-Conversation-Id`


class Live(enum.Enum):
    """What a request is for that lives in the memory of one server, and where the request has its id."""

    STREAM = "stream"  # query: `conv_id`
    ANSWER = "answer"  # body: `id`
    RESPONSE = "response"  # path
    BATCH = "batch"  # path


class Unloaded(enum.Enum):
    """What becomes of a request whose model is not loaded."""

    LOAD = enum.auto()
    REFUSE = enum.auto()
    ANSWER = enum.auto()  # the server answers from the model's file


@dataclass(frozen=True, slots=True)
class ModelUse:
    """How a request uses its model. `wakes`: it needs the engine, which sleeps when it was idle for long.
    `progress`: the event of a stream that waits for the model."""

    role: Role
    named_in: NamedIn
    unloaded: Unloaded
    wakes: bool
    progress: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """No field has a default: a new route has to say all of it. `settles`: the answer is sent when what it
    stored is where other servers find it."""

    permission: Permission
    errors: ErrorShape
    model: ModelUse | None  # None: the request is for the server
    follow: Follow
    live: Live | None
    settles: bool
    is_batched: bool


def for_server(permission: Permission, errors: ErrorShape) -> Policy:
    """Return the policy of a route that is for no model and generates nothing."""
    return _quiet(permission, errors, None)


def for_model(permission: Permission, errors: ErrorShape, model: ModelUse) -> Policy:
    """Return the policy of a route that asks about a model, and generates nothing."""
    return _quiet(permission, errors, model)


def _quiet(permission: Permission, errors: ErrorShape, model: ModelUse | None) -> Policy:
    assert permission is not Permission.GENERATE, "a route that generates says all of its policy"
    return Policy(
        permission=permission,
        errors=errors,
        model=model,
        follow=Follow.NEVER,
        live=None,
        settles=False,
        is_batched=False,
    )
