"""Answer a request in one API's way: what all routes that generate have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from starlette.responses import Response

from corral.api.renderer import Renderer
from corral.api.respond import respond
from corral.generate.call import AnyCall, Call
from corral.generate.error_field import renaming
from corral.generate.prepare import PreparedCompletion


class Parsed(Protocol):
    @property
    def names(self) -> Mapping[str, str]:
        """The client's names of fields, for errors."""
        ...


@dataclass(frozen=True, slots=True)
class AsSent:
    """A body that is in the shape that is prepared: its fields have the client's names."""

    names: Mapping[str, str]


class Streamed(Protocol):
    @property
    def stream(self) -> bool: ...


BodyT = TypeVar("BodyT", bound=Streamed)
ParsedT = TypeVar("ParsedT", bound=Parsed)
Ready = tuple[PreparedCompletion, Renderer]


@dataclass(frozen=True, slots=True)
class Dialect(Generic[BodyT, ParsedT]):
    """`parse`: bring the body into the shape that is prepared, in a pool if that takes long."""

    parse: Callable[[Call[BodyT]], Awaitable[ParsedT]]
    prepare: Callable[[Call[BodyT], ParsedT], Awaitable[Ready]]


async def run_dialect(call: Call[BodyT], dialect: Dialect[BodyT, ParsedT]) -> Response:
    """Return the answer, or the beginning of its stream."""
    parsed = await dialect.parse(call)
    with renaming(parsed.names):
        prepared, renderer = await dialect.prepare(call, parsed)
        return await respond(call, prepared, renderer, call.body.stream)


async def as_sent(_: AnyCall) -> AsSent:
    """Parse nothing."""
    return AsSent({})
