"""Answers that are being generated, by the ids that their clients know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corral.core.result import ControlOutcome
from corral.core.task import ControlVerb, apply_control
from corral.generate.background import Background

if TYPE_CHECKING:
    from corral.core.client import Client
    from corral.features.durable.work import DurableWork
    from corral.generate.choice import Choice
    from corral.generate.engine import Engine, Runner

MAX_PAUSE_S = 600.0  # a paused answer keeps its slot


@dataclass(slots=True, eq=False)
class Live:
    """Mutable: the choices of an answer, and the timer that ends its pause."""

    choices: Sequence[Choice]
    work: DurableWork | None = None
    timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class LiveAnswers:
    """Mutable. An id is known only to the client whose answer it is."""

    def __init__(self, engine: Engine, runner: Runner) -> None:
        self._engine = engine
        self._runner = runner
        self._live: dict[tuple[str, str], Live] = {}
        self._background = Background()

    def add(
        self, client: Client, id: str, choices: Sequence[Choice], work: DurableWork | None = None
    ) -> Callable[[], None]:
        """Make an answer known under an id; returns what forgets it."""
        return self._add((client.id, id), Live(choices, work))

    def add_alias(self, client: Client, id: str, alias: str) -> Callable[[], None]:
        """Make an answer known under another id too; returns what forgets that."""
        return self._add((client.id, alias), self._live[client.id, id])

    def find(self, client: Client, id: str) -> Live | None:
        return self._live.get((client.id, id))

    def _add(self, key: tuple[str, str], live: Live) -> Callable[[], None]:
        self._live[key] = live

        def forget() -> None:
            if self._live.get(key) is live:
                del self._live[key]
            live.stop_timer()

        return forget

    async def control(
        self, client: Client, id: str, verb: ControlVerb, n_predict: int = -1
    ) -> ControlOutcome:
        """Control all choices of an answer that have not ended; returns the first outcome that is not done,
        if there is any."""
        live = self.find(client, id)
        running = [choice for choice in live.choices if choice.done is None] if live else []
        if live is None or not running:
            return ControlOutcome.UNKNOWN
        if verb in (ControlVerb.PAUSE, ControlVerb.RESUME):
            live.stop_timer()
        if verb is ControlVerb.PAUSE:
            live.timer = asyncio.get_running_loop().call_later(MAX_PAUSE_S, self._resume, client, id)
        outcomes = [await self._control(live, choice, verb, n_predict) for choice in running]
        return next((one for one in outcomes if one is not ControlOutcome.DONE), ControlOutcome.DONE)

    async def _control(self, live: Live, choice: Choice, verb: ControlVerb, n_predict: int) -> ControlOutcome:
        if verb is ControlVerb.LIMIT:
            self._runner.resize(choice.place, apply_control(choice.task, verb, n_predict))
        outcome = await self._engine.control(choice.task.id, verb, n_predict)
        if outcome is ControlOutcome.DONE:
            choice.task = apply_control(choice.task, verb, n_predict)
            if live.work is not None:
                live.work.note_control(choice.index, verb, n_predict)
        return outcome

    def _resume(self, client: Client, id: str) -> None:
        self._background.spawn(self.control(client, id, ControlVerb.RESUME))
