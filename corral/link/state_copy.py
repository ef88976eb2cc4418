"""Copy the state of a prefix to the engine that is about to evaluate it, where that takes less time.

The engine of a new task may be another one than the one that has the beginning of its prompt in a slot,
because that one is loaded. `plan_copy` decides by what copies and prompts have taken so far; the task waits
for its copy, but not longer than evaluating would take. Tasks with the same prefix wait for the same copy.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.core.errors import CorralError
from corral.core.task import Busy, SlotAction, Task, Verb
from corral.link.cache_view import PromptBlocks
from corral.link.member import Member
from corral.link.prefix_index import BLOCK, common_blocks

MIN_TOKENS = 256
_MIN_RATIO = 2.0  # evaluating must take this many times as long
_TOKEN_MS = 0.1  # of a copy, assumed until measured
_WEIGHT = 0.3  # of the last copy in the mean
_RETRY = 0.99  # a decision against copying lowers the mean: it may be out of date
_log = logging.getLogger("corral")


class CopyOutcome(enum.Enum):
    COPIED = "copied"
    FAILED = "failed"  # evaluated after all
    DECLINED = "declined"  # evaluated, because copying takes longer


@dataclass(slots=True)
class CopyCost:
    """Mutable: what copies have taken so far, per token. One that failed counts as if it had taken as long as
    evaluating: where most fail, few are tried."""

    token_ms: float = _TOKEN_MS

    def observe(self, n_tokens: int, ms: float) -> None:
        self.token_ms += _WEIGHT * (ms / n_tokens - self.token_ms)

    def decline(self) -> None:
        self.token_ms *= _RETRY


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """The first `n_tokens` of a prompt, evaluated in a slot that has `n_saved` tokens, all of which are
    copied."""

    slot: int
    n_tokens: int
    n_saved: int


@dataclass(slots=True, eq=False)
class StateCopy:
    """Mutable: a copy to an engine, for one task and those that come meanwhile. `source`: the engine that it
    came from, once it is there."""

    held: HeldPrefix
    blocks: Sequence[int]
    member: Member
    source: int = -1
    done: asyncio.Event = field(default_factory=asyncio.Event)


def plan_copy(n_here: int, there: HeldPrefix, evaluate_ms: float, copy_ms: float) -> bool:
    """Whether to copy a prefix; both times are per token."""
    if there.n_tokens - n_here < MIN_TOKENS:
        return False
    return (there.n_tokens - n_here) * evaluate_ms >= _MIN_RATIO * there.n_saved * copy_ms


class StateCopies:
    """Mutable: the copies under way."""

    def __init__(self, members: Sequence[Member], on_copy: Callable[[str, int, float], None]) -> None:
        """`on_copy`: called with the outcome of every decision, the tokens copied and the seconds taken."""
        self._members = members
        self._on_copy = on_copy
        self._cost = CopyCost()
        self._targets: set[int] = set()  # slots that a copy is for
        self._running: list[StateCopy] = []

    @property
    def token_ms(self) -> float:
        return self._cost.token_ms

    def find(self, task: Task, blocks: PromptBlocks) -> HeldPrefix | None:
        """Return the longest part of a prompt that a slot has."""
        if task.params.id_slot >= 0 or len(blocks.own) * BLOCK < MIN_TOKENS:
            return None
        running = [member for member in self._members if member.is_open]
        found = [
            HeldPrefix(slot, each.view.n_evaluated(slot, blocks), each.view.n_blocks_of(slot) * BLOCK)
            for each in running
            for slot in each.slots
        ]
        held = max(found, key=lambda held: held.n_tokens, default=None)
        return held if held is not None and held.n_tokens >= MIN_TOKENS else None

    def pays(self, held: HeldPrefix, n_here: int = 0) -> bool:
        """Whether copying takes less time than evaluating, for an engine that has `n_here` tokens."""
        evaluate_ms = min(member.load_now.token_ms for member in self._members)
        return plan_copy(n_here, held, evaluate_ms, self.token_ms)

    def plan(self, held: HeldPrefix | None, blocks: PromptBlocks, member: Member) -> StateCopy | None:
        """Return the copy that a task should wait for on this engine."""
        for copy in self._running:
            if copy.member is member and common_blocks(copy.blocks, blocks.own) * BLOCK >= MIN_TOKENS:
                return copy
        n_here = member.view.n_cached(blocks)
        if held is None or not self._can_have(member, held) or held.n_tokens - n_here < MIN_TOKENS:
            return None
        if not self.pays(held, n_here):
            self._cost.decline()
            self._on_copy(CopyOutcome.DECLINED.value, 0, 0.0)
            return None
        return StateCopy(held, blocks.own[: held.n_tokens // BLOCK], member)

    def start(self, copy: StateCopy, task: Task) -> Coroutine[Any, Any, None]:
        """Return what copies a prefix into a free slot, unless that is under way, then sends the task,
        whether that has succeeded or not."""
        is_first = copy not in self._running
        if is_first:
            self._running.append(copy)
        copy.member.expect_copy(task.id, copy.held.n_tokens)
        return self._serve(copy, task, is_first)

    def _can_have(self, member: Member, held: HeldPrefix) -> bool:
        is_apart = held.slot not in member.slots and member.is_open and member.load_now.n_free > 0
        return is_apart and self._of(held.slot).fingerprint == member.fingerprint

    async def _serve(self, copy: StateCopy, task: Task, is_first: bool) -> None:
        try:
            if is_first:
                await self._run(copy, task)
            else:
                await copy.done.wait()
            if copy.source >= 0:
                copy.member.note_copy(task.id, copy.source)
        finally:
            copy.member.release(task.id)

    async def _run(self, copy: StateCopy, task: Task) -> None:
        slot = next(self._free_slots(copy.member), -1)
        self._targets.add(slot)
        try:
            if slot >= 0:
                await self._try(copy, task, slot)
        finally:
            self._targets.discard(slot)
            self._running.remove(copy)
            copy.done.set()

    async def _try(self, copy: StateCopy, task: Task, slot: int) -> None:
        held, member = copy.held, copy.member
        started, limit_ms = time.monotonic(), held.n_tokens * member.load_now.token_ms
        try:
            await asyncio.wait_for(self._copy(held, task, member, slot), limit_ms / 1e3)
        except (CorralError, asyncio.TimeoutError) as error:
            self._cost.observe(held.n_saved, limit_ms)
            self._on_copy(CopyOutcome.FAILED.value, 0, time.monotonic() - started)
            _log.debug("a state was not copied: %(reason)s", {"reason": str(error) or "it took too long"})
        else:
            seconds = time.monotonic() - started
            self._cost.observe(held.n_saved, seconds * 1e3)
            copy.source = self._of(held.slot).index
            self._on_copy(CopyOutcome.COPIED.value, held.n_tokens, seconds)

    async def _copy(self, held: HeldPrefix, task: Task, member: Member, slot: int) -> None:
        with tempfile.TemporaryFile() as file:
            whose: dict[str, Any] = {"tenant": task.tenant, "sees_all": True}
            save = SlotAction(verb=Verb.SAVE, slot=held.slot, busy=Busy.IGNORE, **whose)
            await self._of(held.slot).act(save, file.fileno())
            file.seek(0)
            restore = SlotAction(verb=Verb.RESTORE, slot=slot, busy=Busy.REFUSE, is_ours=True, **whose)
            await member.act(restore, file.fileno())

    def _of(self, slot: int) -> Member:
        return next(member for member in self._members if slot in member.slots)

    def _free_slots(self, member: Member) -> Iterator[int]:
        """Yield the slots without a task, those with the least content first."""
        free = set(member.slots) - member.view.busy_slots - self._targets
        return iter(sorted(free, key=member.view.n_blocks_of))
