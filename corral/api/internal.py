"""Requests that the server itself makes for a client: lines of batches, requests of the journal, instances
of Vertex. Each is a call of its route's function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.types import Message, Send

from corral.api.incoming import Incoming
from corral.generate.caller import Caller


@dataclass(frozen=True, slots=True)
class Ask:
    """A POST with a JSON body. `headers`: names in small letters. `query`: may name the model, and say
    whether it is loaded."""

    caller: Caller
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def incoming(self) -> Incoming:
        return Incoming(self.caller, self.path, self.headers, _whole(self.body))


RunAsk = Callable[[Ask, Send], Awaitable[None]]


class Answer:
    """Mutable: the answer as it is sent."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body
