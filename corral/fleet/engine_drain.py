"""Replace an engine while the others serve: its tasks move or end, its process ends, the next one loads.

A task that runs moves when another engine has a free slot, and continues there with the next token; until
then it stays. New tasks go elsewhere, except those that ask for one of its slots: they wait for the next
engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from corral.core.errors import Conflict
from corral.fleet.dispatcher import Dispatcher
from corral.fleet.member import Member
from corral.link.client import READY_S
from corral.link.engine_state import EngineState

LIMIT_S = 60.0  # for tasks and commands that find no other slot
_log = logging.getLogger("corral")


class EngineDrain:
    """Replaces one engine at a time; others wait for their turn."""

    def __init__(self, members: Sequence[Member], dispatcher: Dispatcher) -> None:
        self._members = members
        self._dispatcher = dispatcher
        self._turn = asyncio.Lock()

    async def replace(
        self,
        member: Member,
        load: Callable[[Member], Awaitable[None]] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Return when the next engine is ready; one that has failed is started again. Raises Conflict if it
        is neither ready nor failed, if no other is ready, or if it fails again.
        `load`: starts the next engine otherwise. `limit_s`: for tasks that cannot move."""
        async with self._turn:
            if member.state is EngineState.FAILED:
                await member.lifecycle.revive()
                return
            self._check(member)
            member.is_draining = True
            try:
                await self._empty(member, limit_s)
                await member.lifecycle.unload()
                await (load or _load)(member)
            finally:
                member.is_draining = False
            await self._dispatcher.level(member)
        _log.info("engine %(index)d was replaced", {"index": member.index})

    async def clear(self, member: Member) -> None:
        """Move the tasks of an engine that is not needed, as far as others have room for them and they can
        take their states along. Does nothing while an engine is being replaced."""
        if self._turn.locked():
            return
        async with self._turn:
            member.is_draining = True
            try:
                await self._dispatcher.release(member)
            finally:
                member.is_draining = False

    def _check(self, member: Member) -> None:
        if member.state is not EngineState.READY:
            raise Conflict(f"engine {member.index} is {member.state.value}")
        if not any(other.is_open for other in self._members if other is not member):
            raise Conflict("no other engine is ready")

    async def _empty(self, member: Member, limit_s: float) -> None:
        """Wait for what cannot move, but only for what is there now."""
        ids, deadline = set(member.pending), time.monotonic() + limit_s
        await self._dispatcher.relieve(member)
        while ids & member.pending.keys() or member.client.is_asked:
            if member.state is not EngineState.READY or time.monotonic() > deadline:
                return
            await asyncio.sleep(READY_S)
            await self._dispatcher.relieve(member)


async def _load(member: Member) -> None:
    await member.client.load()
