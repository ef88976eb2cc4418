"""Orders that have not ended: what their clients already have, and which are to blame for lost engines."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from corral.core.medium import Medium
from corral.core.modifier import AdapterConfig
from corral.core.task import Embed, Task
from corral.link.stream import TaskStream

MAX_LOSSES = 3  # engines a task may take down with it


class MediaFile(Protocol):
    """Media of prompts, in a file that stays open."""

    @property
    def media(self) -> list[list[Medium]]:
        """Of every prompt."""
        ...

    @property
    def fd(self) -> int: ...


@dataclass(slots=True)
class Entry:
    """Mutable."""

    order: Task | Embed
    stream: TaskStream
    media: MediaFile | None = None  # is open for as long as it may be sent
    delivered: list[int] = field(default_factory=list)
    n_losses: int = 0
    is_sent: bool = False  # to the engine that there is
    is_admitted: bool = False  # by it

    @property
    def lora(self) -> AdapterConfig:
        return self.order.lora if isinstance(self.order, Embed) else self.order.params.lora

    def again(self) -> Task | Embed:
        """What another engine has to do."""
        if isinstance(self.order, Embed):
            return self.order
        return msgspec.structs.replace(self.order, resume=self.delivered)


def suspects(entries: Collection[Entry]) -> list[Entry]:
    """Which of them may have taken an engine down: those that it worked on, else all that it knew of."""
    return [entry for entry in entries if entry.is_admitted] or [entry for entry in entries if entry.is_sent]


def blame(entries: Collection[Entry]) -> list[Entry]:
    """Their engine is lost; returns those that have taken too many down for the others to go on with them."""
    blamed = suspects(entries)
    for entry in blamed:
        entry.n_losses += 1
    for entry in entries:
        entry.is_sent = entry.is_admitted = False
    return [entry for entry in blamed if entry.n_losses >= MAX_LOSSES]
