"""The interface of everything that takes part in a step: answers, embeddings, media, adapters, actions on
slots.

In a step the hooks are called in this order: `admit`, `plan`, then the planned batches, `end_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from corral.core.result import Decodes, Event, Heartbeat
from corral.core.task import Command
from corral.engine.coroutine import Coroutine, Reservations


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Chunks that are evaluated at once. `begun` is reported before, in case the engine crashes."""

    run: Callable[[], list[Event]]
    begun: list[Event] = field(default_factory=list)


class Worker:
    """Every hook is optional. The engine's thread calls all but `abort_if_...` and `heartbeat`."""

    handles: tuple[type[Command], ...] = ()
    yields = False  # whether lines of batches have to pause, because some worker `is_urgent`

    @property
    def has_work(self) -> bool:
        return False

    @property
    def is_urgent(self) -> bool:
        """Whether it evaluates something that is not the line of a batch."""
        return False

    def handle(self, command: Command, arrival: int) -> Coroutine | Event | None:
        """Execute a command listed in `handles`; a CorralError becomes `Failed`. `arrival`: number of
        commands before."""
        raise NotImplementedError(type(command).__name__)

    def cancel(self, task_id: int) -> None:
        """Drop a task if it is here."""

    def admit(self, _now: float, _reserved: Reservations) -> Iterable[Event]:
        """Give free resources to waiting tasks."""
        return ()

    def plan(self, _ms: float) -> Sequence[PlannedBatch]:
        """Plan a batch for this step that takes about `ms`, because streams wait for its end."""
        return ()

    def end_step(self, ms: float) -> None:
        """All batches are done; `ms` are left until the next step, or infinity if nothing waits for it."""

    def close(self) -> None:
        """Write what is kept to disk: the engine stops."""

    def abort_if_running(self, task_id: int) -> None:
        """From any thread: abort the evaluation if it works only for this task."""

    def abort_if_yielding(self) -> None:
        """From any thread: abort the evaluation if all its work comes after that of a new task."""

    @property
    def decodes(self) -> Decodes:
        """What it has evaluated so far."""
        return Decodes(0, 0)

    def heartbeat(self) -> Heartbeat:
        """From any thread: report how long the current evaluation has been running."""
        return Heartbeat(0.0, 0.0)
