"""Give tasks to engines, and to others when one is lost or another one is free.

`placement` decides; this module knows the engines, their caches and which tasks may move. A task that has
begun continues only on an engine that computes the same bits, unless there will never be one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np
from cachetools import LRUCache

from corral.core.file import open_memory
from corral.core.task import Embed, Task
from corral.fleet.cache_view import PromptBlocks, prompt_blocks
from corral.fleet.load_table import LoadTable
from corral.fleet.member import Member
from corral.fleet.placement import EngineCost, TaskDemand, estimate_ms
from corral.fleet.prefix_index import HeldBlocks
from corral.link.engine_state import EngineState
from corral.link.pending_task import HeldState, PendingTask

replace = msgspec.structs.replace
_MAX_CONVERSATIONS = 65536
_MAX_COMPARED = 8  # waiting tasks of which one may move
_MAX_SPREAD = 2  # engines that a task may crash before it waits for the last one's successor
_NO_BLOCKS = PromptBlocks((), ())
_log = logging.getLogger("corral")


class Dispatcher:
    """Mutable: remembers which engine served a conversation, and what each engine does."""

    def __init__(
        self,
        members: Sequence[Member],
        held: HeldBlocks,
        changed: set[int],
        cost_of: Callable[[str], EngineCost],
    ) -> None:
        """`held`: the blocks that engines have; `changed`: grows by engines whose load has changed;
        `cost_of`: what answers of engines with a fingerprint take."""
        self._members = members
        self._held = held
        self._changed = changed
        self._cost_of = cost_of
        self._table = LoadTable(len(members))
        self._conversations: LRUCache[tuple[bytes, str], int] = LRUCache(_MAX_CONVERSATIONS)
        self._leaving: set[int] = set()  # tasks whose state is being read

    @property
    def usable(self) -> Sequence[Member]:
        """The engines that can take a task now, else those that will."""
        running = [member for member in self._members if member.state is not EngineState.FAILED]
        awake = [member for member in running if member.state is not EngineState.SLEEPING]
        return [member for member in running if member.is_open] or awake or running or self._members

    def _refresh(self) -> LoadTable:
        """Bring the rows of the engines that have changed, or were not open, up to date."""
        table = self._table
        for index in self._changed.union(np.flatnonzero(~table.is_open).tolist()):
            member = self._members[index]
            table.put(index, member.load_now, member.fingerprint)
            table.is_open[index] = member.is_open
        self._changed.clear()
        table.set_costs(self._cost_of)
        return table

    def choose(self, task: Task | Embed) -> tuple[Member, PromptBlocks]:
        """Return the engine for a new task, and the blocks of its prompt."""
        blocks = _blocks(task)
        member = self._place(task, blocks)
        if (conversation := _conversation(task)) is not None:
            self._conversations[conversation] = member.index
        return member, blocks

    def hand_over(self, member: Member) -> None:
        """Find another engine for every task of one that is away; what finds none waits for it."""
        for pending in list(member.pending.values()):
            if heirs := self._heirs(member, pending):
                self._move(pending, member, heirs)

    async def release(self, member: Member) -> list[PendingTask]:
        """Move the tasks of an engine that is to end: what waits, and what finds a free slot and takes its
        state along. Returns what has found a slot, but cannot take its state along."""
        left = []
        for pending in list(member.pending.values()):
            heirs = self._heirs(member, pending) if self._is_here(member, pending) else []
            if pending.is_admitted:
                heirs = [heir for heir in heirs if heir.load_now.n_free > 0]
                if heirs and not await self._move_running(pending, member, heirs):
                    left.append(pending)
            elif heirs:
                self._move(pending, member, heirs)
        return left

    async def relieve(self, member: Member) -> None:
        """Do the same for one that is to be replaced: what leaves its state is evaluated again elsewhere."""
        for pending in await self.release(member):
            if self._is_here(member, pending) and (heirs := self._heirs(member, pending)):
                self._move(pending, member, heirs)

    async def level(self, member: Member) -> None:
        """Move running tasks, with their states, to an engine that has just become ready, until the others
        have as many as it has, or one more."""
        tried: set[int] = set()
        while (surplus := self._find_surplus(member, tried)) is not None:
            pending, full = surplus
            tried.add(pending.task.id)
            await self._move_running(pending, full, [member])

    def even_out(self) -> None:
        """Move waiting tasks from engines without a free slot to engines with one, if they start earlier."""
        while plan := self._refresh().plan_transfer():
            full, free = (self._members[index] for index in plan)
            if not self._are_open(plan):
                continue
            pending = next((each for each in _waiting(full) if self._gains(each, full, free)), None)
            if pending is None:
                return
            self._move(pending, full, [free])

    def _place(
        self, task: Task | Embed, blocks: PromptBlocks, members: Sequence[Member] | None = None
    ) -> Member:
        """Choose one of some engines, or of all that are open; if there are none, of those that will be."""
        if isinstance(task, Task) and task.params.id_slot >= 0:
            return next(member for member in self._members if task.params.id_slot in member.slots)
        demand, table = self._demand(task, blocks), self._refresh()
        while members is None and table.is_open.any():
            chosen = table.place(demand, table.is_open)
            if self._are_open(chosen):
                return self._members[chosen[0]]
        indexes = [member.index for member in members or self.usable]
        return self._members[table.place(demand, table.only(indexes))[0]]

    def _are_open(self, indexes: Sequence[int]) -> bool:
        """Whether engines are as open as they were: one that is silent has not changed otherwise."""
        for index in indexes:
            self._table.is_open[index] = self._members[index].is_open
        return bool(self._table.is_open[list(indexes)].all())

    def _demand(self, task: Task | Embed, blocks: PromptBlocks) -> TaskDemand:
        if isinstance(task, Embed):
            return TaskDemand(sum(map(len, task.inputs)))
        cached = self._held.n_cached(blocks.own)
        for index, n in self._held.n_cached(blocks.shared).items():
            cached[index] = max(n, cached.get(index, 0))
        conversation = _conversation(task)
        last = self._conversations.get(conversation, -1) if conversation is not None else -1
        return TaskDemand(len(task.prompt), cached, last)

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

    def _find_surplus(self, member: Member, tried: Collection[int]) -> tuple[PendingTask, Member] | None:
        """Return the shortest running task, not tried yet, of an engine with two more of them than `member`,
        and that engine."""
        if not member.is_open:
            return None
        n_most = member.load_now.n_tasks + 2
        found = [
            (pending, other)
            for other in self._members
            if other is not member and other.is_open and other.load_now.n_running >= n_most
            for id, pending in other.pending.items()
            if pending.is_admitted and pending.delivered and id not in tried
            if self._is_here(other, pending) and member in self._heirs(other, pending)
        ]
        return min(found, key=lambda each: _n_known(each[0]), default=None)

    async def _move_running(self, pending: PendingTask, member: Member, others: Sequence[Member]) -> bool:
        """Move a task with its state, so that the other engine continues with the next token. Return whether
        it has left, or has no state any more; otherwise it continues where it is."""
        task = _unpinned(pending.task)
        heir, fd = self._place(task, _blocks(task), others), open_memory("state")
        self._leaving.add(task.id)
        try:
            with heir.expecting_one():
                state = await member.give_state(pending, fd)
            if not _has(member, pending):
                return True  # it has ended, or its engine has
            if state is None:
                return False
            if heir in self._heirs(member, pending):
                is_alike = heir.fingerprint == member.fingerprint
                self._move(pending, member, [heir], state if is_alike else None)
            else:
                member.client.send_again(pending)
            return True
        finally:
            self._leaving.discard(task.id)
            os.close(fd)

    def _is_here(self, member: Member, pending: PendingTask) -> bool:
        """Whether an engine has a task, and it is not about to leave."""
        return _has(member, pending) and pending.task.id not in self._leaving

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
        demand = self._demand(pending.task, _blocks(pending.task))
        n_left, others = full.load_without(pending.task.id)
        stays_ms = estimate_ms(TaskDemand(n_left), full.index, others)
        return estimate_ms(demand, free.index, free.load_now) < stays_ms


def _waiting(member: Member) -> list[PendingTask]:
    """Return the first of an engine's waiting tasks, in its own order."""
    waiting = {id: each for id, each in member.pending.items() if not each.is_admitted}
    known = [waiting.pop(id) for id in member.queue if id in waiting]
    return [*known, *waiting.values()][:_MAX_COMPARED]


def _has(member: Member, pending: PendingTask) -> bool:
    return member.pending.get(pending.task.id) is pending


def _n_known(pending: PendingTask) -> int:
    n_prompt = len(pending.task.prompt) if isinstance(pending.task, Task) else 0
    return n_prompt + len(pending.delivered)


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
