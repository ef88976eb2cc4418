"""Tasks that have not ended: the tokens already delivered, and which tasks may have crashed an engine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from corral.core.media_item import MediaItem
from corral.core.modifier import AdapterConfig
from corral.core.task import Control, ControlVerb, Embed, Task, apply_control
from corral.link.observer import TaskObserver
from corral.link.stream import TaskStream

MAX_CRASHES = 3  # engines that a task may crash without a new token
MAX_LOST = 12  # engines that may be lost while they work on a task


class MediaFile(Protocol):
    """Media items of prompts, in a file that stays open."""

    @property
    def media(self) -> list[list[MediaItem]]:
        """The media of every prompt."""
        ...

    @property
    def fd(self) -> int: ...


@dataclass(frozen=True, slots=True)
class HeldState:
    """The file `fd` has the state of a task's first `n_past` tokens."""

    n_past: int
    fd: int


@dataclass(slots=True)
class PendingTask:
    """A task that has not ended. `media` keeps its file open while the task may be sent again."""

    task: Task | Embed
    stream: TaskStream
    observer: TaskObserver
    media: MediaFile | None = None
    delivered: list[int] = field(default_factory=list)
    n_crashes: int = 0  # since its last token
    is_sent: bool = False  # sent to the current engine
    is_admitted: bool = False  # admitted by the current engine
    is_paused: bool = False
    n_lost: int = 0  # engines that worked on it
    n_at_crash: int = 0  # delivered tokens when the last of them was lost

    @property
    def lora(self) -> AdapterConfig:
        return self.task.lora if isinstance(self.task, Embed) else self.task.params.lora

    def charge_crash(self) -> bool:
        """Charge the task with a crash; return whether it must not be sent again. One that got new tokens
        since the last crash did not cause that: it would have caused the same one again."""
        is_new = len(self.delivered) > self.n_at_crash
        self.n_crashes = 1 if is_new else self.n_crashes + 1
        self.n_at_crash = len(self.delivered)
        self.n_lost += 1
        return self.n_crashes >= MAX_CRASHES or self.n_lost >= MAX_LOST

    def resumed(self, state: HeldState | None = None) -> Task | Embed:
        """Return the task for another engine, with the tokens already delivered."""
        if isinstance(self.task, Embed):
            return self.task
        task = msgspec.structs.replace(self.task, resume=self.delivered)
        return task if state is None else msgspec.structs.replace(task, n_past=state.n_past, fd=state.fd)

    def note_control(self, control: Control) -> None:
        """Note what was changed, so that another engine continues in the same way."""
        if isinstance(self.task, Embed):
            return
        if control.verb in (ControlVerb.PAUSE, ControlVerb.RESUME):
            self.is_paused = control.verb is ControlVerb.PAUSE
        self.task = apply_control(self.task, control.verb, control.n_predict)


def suspects(pending: Collection[PendingTask]) -> list[PendingTask]:
    """Return the tasks that may have crashed the engine: those it worked on, else all it was sent."""
    return [each for each in pending if each.is_admitted] or [each for each in pending if each.is_sent]


def charge_crash(pending: Collection[PendingTask]) -> list[PendingTask]:
    """Charge the suspects with a crash; return those charged too often, which must not be sent again."""
    over = [each for each in suspects(pending) if each.charge_crash()]
    for each in pending:
        each.is_sent = each.is_admitted = False
    return over
