"""Replace the model file of a fleet, one engine after another, without a lost stream.

Answers that have begun end with the old file: `EngineDrain` waits for them, however long they take.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

import msgspec

from corral.core.errors import Conflict
from corral.fleet.engine_drain import EngineDrain
from corral.fleet.member import Member
from corral.link.client import READY_S
from corral.link.engine_state import EngineState

_log = logging.getLogger("corral")


class EngineUpdate:
    """One update at a time."""

    def __init__(self, members: Sequence[Member], drain: EngineDrain) -> None:
        self._members = members
        self._drain = drain
        self._turn = asyncio.Lock()

    async def run(self, model: str) -> None:
        """Return when all engines have the file. Raises CorralError if one cannot load it: that one, and
        those after it, have the former file."""
        async with self._turn:
            # Failed engines first: they serve nobody, and then can serve for others.
            for member in sorted(self._members, key=lambda each: each.state is not EngineState.FAILED):
                await self._update(member, model)
        _log.info("all engines have the model %(path)s", {"path": model})

    async def _update(self, member: Member, model: str) -> None:
        lifecycle = member.lifecycle
        if member.state in (EngineState.SLEEPING, EngineState.FAILED):
            former = lifecycle.settings
            lifecycle.settings = msgspec.structs.replace(former, model=model)
            try:
                await lifecycle.revive()
            except Conflict:
                lifecycle.settings = former
                raise
            return
        await member.client.load()
        await self._drain.replace(member, lambda member: _load(member, model), math.inf)


async def _load(member: Member, model: str) -> None:
    n_restarts = member.lifecycle.n_restarts
    member.trial_model = model
    member.lifecycle.wake()
    while member.state is not EngineState.READY and member.lifecycle.n_restarts == n_restarts:
        member.lifecycle.check_up()
        await asyncio.sleep(READY_S)
    if member.lifecycle.n_restarts > n_restarts:
        raise Conflict(f"engine {member.index} cannot load the file; the log says why")
