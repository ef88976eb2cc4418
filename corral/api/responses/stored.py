"""A stored response: the answer, its input items, and the lengths of its deltas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from corral.api.responses.item import Item
from corral.api.responses.writer import Cuts, replay_items

UNFINISHED = ("queued", "in_progress")
_LOST: dict[str, str] = {
    "code": "server_error",
    "message": "the server stopped before the response was complete",
}
_OF_END = ("usage", "completed_at", "error", "incomplete_details")  # null until then


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`input`: its new input items. `is_begun`: it has left the queue."""

    response: Item
    input: list[Item]
    cuts: list[Cuts]
    is_begun: bool

    @property
    def items(self) -> list[Item]:
        """Return the input and output items, for a response that continues this one."""
        return [*self.input, *self.response["output"]]

    def encode(self) -> bytes:
        return orjson.dumps({name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def decode(data: bytes) -> StoredResponse:
        """Parse a stored response; one that is unfinished was lost with its server and has failed."""
        stored = StoredResponse(**orjson.loads(data))
        if stored.response["status"] in UNFINISHED:
            stored.response.update(status="failed", error=_LOST)
        return stored


def is_unfinished(data: bytes) -> bool:
    """Whether a stored response had not ended when it was stored."""
    return orjson.loads(data)["response"]["status"] in UNFINISHED


def replay(stored: StoredResponse) -> Iterator[dict[str, Any]]:
    """Yield the events of its stream, exactly as they were sent."""
    response, is_queued = stored.response, bool(stored.response["background"])
    begun = [opening_event(response, "in_progress")] if is_queued and stored.is_begun else []
    events = [
        *opening_events(response, is_queued),
        *begun,
        *replay_items(response["output"], stored.cuts),
        last_event(response),
    ]
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def opening_events(response: Item, is_queued: bool) -> list[dict[str, Any]]:
    """Return the first two events; the second says whether it is queued or in progress."""
    status = "queued" if is_queued else "in_progress"
    created = {**opening_event(response, status), "type": "response.created"}
    return [created, opening_event(response, status)]


def opening_event(response: Item, status: str) -> dict[str, Any]:
    """Return `response.queued` or `response.in_progress`, with the response before it had output."""
    blank = {**response, **dict.fromkeys(_OF_END), "status": status, "output": []}
    for name in ("warnings", "cache_report"):
        blank.pop(name, None)
    return {"type": f"response.{status}", "response": blank}


def last_event(response: Item) -> dict[str, Any]:
    """Return the last event; the API has none for cancelled responses, which end as incomplete."""
    status = response["status"]
    return {"type": f"response.{'incomplete' if status == 'cancelled' else status}", "response": response}
