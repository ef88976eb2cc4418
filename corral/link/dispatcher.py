"""Give tasks to engines, and to others when one is lost or another one is free.

`placement` decides; this module knows the engines, their caches and which tasks may move. A task that has
begun continues only on an engine that computes the same bits, unless there will never be one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import msgspec
from cachetools import LRUCache

from corral.core.file import open_memory
from corral.core.task import Embed, Task
from corral.link.cache_view import PromptBlocks, prompt_blocks
from corral.link.lifecycle import EngineState
from corral.link.member import Member
from corral.link.pending_task import HeldState, PendingTask
from corral.link.placement import Demand, estimate_ms, place, plan_transfer

replace = msgspec.structs.replace
_MAX_CONVERSATIONS = 65536
_MAX_COMPARED = 8  # waiting tasks of which one may move
_MAX_SPREAD = 2  # engines that a task may crash before it waits for the last one's successor
_NO_BLOCKS = PromptBlocks((), ())
_log = logging.getLogger("corral")


class Dispatcher:
    """Mutable: remembers which engine served a conversation."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._conversations: LRUCache[tuple[bytes, str], int] = LRUCache(_MAX_CONVERSATIONS)

    @property
    def usable(self) -> Sequence[Member]:
        """The engines that can take a task now, else those that will."""
        running = [member for member in self._members if member.state is not EngineState.FAILED]
        awake = [member for member in running if member.state is not EngineState.SLEEPING]
        return [member for member in running if member.is_open] or awake or running or self._members

    def choose(self, task: Task | Embed) -> tuple[Member, PromptBlocks]:
        """Return the engine for a new task, and the blocks of its prompt."""
        blocks = _blocks(task)
        member = self._place(task, blocks, self.usable)
        if (conversation := _conversation(task)) is not None:
            self._conversations[conversation] = member.index
        return member, blocks

    def hand_over(self, member: Member) -> None:
        """Find another engine for every task of one that is away; what finds none waits for it."""
        for pending in list(member.pending.values()):
            if heirs := self._heirs(member, pending):
                self._move(pending, member, heirs)

    async def relieve(self, member: Member) -> None:
        """Move the tasks of an engine that is to be replaced: what waits, and what finds a free slot."""
        for pending in list(member.pending.values()):
            heirs = self._heirs(member, pending) if _has(member, pending) else []
            if pending.is_admitted:
                heirs = [heir for heir in heirs if heir.load_now.n_free > 0]
            if heirs and pending.is_admitted:
                await self._move_running(pending, member, heirs)
            elif heirs:
                self._move(pending, member, heirs)

    def even_out(self) -> None:
        """Move waiting tasks from engines without a free slot to engines with one, if they start earlier."""
        while plan := plan_transfer({m.index: m.load_now for m in self._members if m.is_open}):
            full, free = (self._members[index] for index in plan)
            pending = next((each for each in _waiting(full) if self._gains(each, full, free)), None)
            if pending is None:
                return
            self._move(pending, full, [free])

    def _place(self, task: Task | Embed, blocks: PromptBlocks, members: Sequence[Member]) -> Member:
        if isinstance(task, Task) and task.params.id_slot >= 0:
            return next(member for member in self._members if task.params.id_slot in member.slots)
        loads = {member.index: member.load_now for member in members}
        return self._members[place(self._demand(task, blocks, members), loads)]

    def _demand(self, task: Task | Embed, blocks: PromptBlocks, members: Sequence[Member]) -> Demand:
        if isinstance(task, Embed):
            return Demand(sum(map(len, task.inputs)))
        cached = {member.index: member.view.n_cached(blocks) for member in members}
        conversation = _conversation(task)
        last = self._conversations.get(conversation, -1) if conversation is not None else -1
        return Demand(len(task.evaluated), cached, last)

    def _heirs(self, member: Member, pending: PendingTask) -> list[Member]:
        """Return the engines that may continue a task."""
        is_over = member.state is EngineState.FAILED
        if not is_over and (_is_pinned(pending) or pending.n_crashes >= _MAX_SPREAD):
            return []
        others = [other for other in self._members if other is not member]
        found = [other for other in others if other.is_open]
        if is_over and not found:
            found = [other for other in others if other.state is not EngineState.FAILED]
        if not pending.delivered:
            return found
        equal = [other for other in found if other.fingerprint == member.fingerprint]
        if not is_over or equal:
            return equal
        if found:
            _log.warning("a task continues on an engine that differs: its answer may differ, too")
        return found

    async def _move_running(self, pending: PendingTask, member: Member, others: Sequence[Member]) -> None:
        """Move a task with its state, so that the other engine continues with the next token. Without it, if
        there is none: then that engine evaluates what is known again."""
        task = _unpinned(pending.task)
        heir, fd = self._place(task, _blocks(task), others), open_memory("state")
        try:
            with heir.expecting_one():
                state = await member.give_state(pending, fd)
            if not _has(member, pending):
                return  # it has ended, or its engine has
            heirs = self._heirs(member, pending)
            if heir in heirs:
                is_alike = heir.fingerprint == member.fingerprint
                self._move(pending, member, [heir], state if is_alike else None)
            elif heirs:
                self._move(pending, member, heirs)
            elif state is not None:
                member.keep(pending)
        finally:
            os.close(fd)

    def _move(
        self,
        pending: PendingTask,
        member: Member,
        others: Sequence[Member],
        state: HeldState | None = None,
    ) -> None:
        member.hand_over(pending.task.id)
        task = pending.task = _unpinned(pending.task)
        blocks = _blocks(task)
        self._place(task, blocks, others).adopt(pending, blocks, state)

    def _gains(self, pending: PendingTask, full: Member, free: Member) -> bool:
        """Whether a task that waits starts earlier elsewhere."""
        if _is_pinned(pending) or (pending.delivered and full.fingerprint != free.fingerprint):
            return False
        demand = self._demand(pending.task, _blocks(pending.task), [free])
        n_left, others = full.load_without(pending.task.id)
        stays_ms = estimate_ms(Demand(n_left), full.index, others)
        return estimate_ms(demand, free.index, free.load_now) < stays_ms


def _waiting(member: Member) -> list[PendingTask]:
    """Return the first of an engine's waiting tasks, in its own order."""
    waiting = {id: each for id, each in member.pending.items() if not each.is_admitted}
    known = [waiting.pop(id) for id in member.queue if id in waiting]
    return [*known, *waiting.values()][:_MAX_COMPARED]


def _has(member: Member, pending: PendingTask) -> bool:
    return member.pending.get(pending.task.id) is pending


def _blocks(task: Task | Embed) -> PromptBlocks:
    return prompt_blocks(task) if isinstance(task, Task) else _NO_BLOCKS


def _conversation(task: Task | Embed) -> tuple[bytes, str] | None:
    """Return what the tasks of one conversation have in common, if the client says so."""
    if isinstance(task, Embed) or not task.params.prompt_cache_key:
        return None
    return task.tenant, task.params.prompt_cache_key


def _unpinned(task: Task | Embed) -> Task | Embed:
    """Return a task for any slot: those of other engines have other numbers."""
    if isinstance(task, Embed) or task.params.id_slot < 0:
        return task
    return replace(task, params=replace(task.params, id_slot=-1))


def _is_pinned(pending: PendingTask) -> bool:
    """Whether a client wants a certain slot, and has not got a token yet."""
    task = pending.task
    return isinstance(task, Task) and task.params.id_slot >= 0 and not pending.delivered
