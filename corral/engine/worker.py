"""How everything takes part in the engine's steps: answers, embeddings, media, adapters, actions on slots.

In a step the hooks are called in this order: `admit`, `plan`, then what was planned, `end_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from corral.core.result import Event, Heartbeat
from corral.core.task import Command
from corral.engine.coroutine import Coroutine, Reservations


@dataclass(frozen=True, slots=True)
class Batch:
    """What is evaluated at once. The front has to know `begun` before, in case the engine dies of it."""

    run: Callable[[], list[Event]]
    begun: list[Event] = field(default_factory=list)


class Worker:
    """Every hook is optional. The engine's thread calls all but `abort_if_running` and `heartbeat`."""

    handles: tuple[type[Command], ...] = ()

    @property
    def has_work(self) -> bool:
        return False

    def handle(self, command: Command, arrival: int) -> Coroutine | Event | None:
        """Execute a command listed in `handles`, the only ones it gets; a CorralError becomes `Failed`.
        `arrival`: number of commands before."""
        raise NotImplementedError(type(command).__name__)

    def cancel(self, task_id: int) -> None:
        """Forget a task if it is here."""

    def admit(self, _now: float, _reserved: Reservations) -> Iterable[Event]:
        """Give what is free to those that wait."""
        return ()

    def plan(self, _ms: float) -> Sequence[Batch]:
        """What to evaluate in this step; it should take so long, because streams wait for its end."""
        return ()

    def end_step(self, ms: float) -> None:
        """All is evaluated; `ms` are left until the next step, or infinity if nothing waits for it."""

    def close(self) -> None:
        """The engine stops: bring what is kept to disk."""

    def abort_if_running(self, task_id: int) -> None:
        """From any thread: cut the evaluation short if all it does is for this task."""

    def heartbeat(self) -> Heartbeat:
        """From any thread: how long the evaluation under way has been running."""
        return Heartbeat(0.0, 0.0)
