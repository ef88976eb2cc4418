"""What one engine has cached, as far as its events say: its slots, its states in host memory, and the prompts
on their way to it.

A prompt counts from the moment it is sent: the engine evaluates a prefix that several tasks share once. Not
known: states on disk, restored files, and where a model's memory cannot be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from corral.core.result import (
    Admitted,
    Done,
    Progress,
    SlotReport,
    StateCached,
    StateEvicted,
    TaskResult,
    Tokens,
)
from corral.core.task import SlotAction, Task, Verb
from corral.fleet.prefix_index import BLOCK, HeldBlocks, PrefixIndex, hash_blocks

_EMPTIED = (Verb.ERASE, Verb.RESTORE, Verb.SHIFT)


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """The blocks of a prompt. `shared`: those of the server's system prompt, or of prompts that belong to no
    tenant, which every tenant may reuse."""

    own: Sequence[int]
    shared: Sequence[int]


def prompt_blocks(task: Task) -> PromptBlocks:
    if not task.params.cache_prompt:
        return PromptBlocks((), ())
    own = hash_blocks(task.prompt, _key(task))
    return PromptBlocks(own, hash_blocks(task.prompt, _key(task, b"")) if task.tenant else ())


class CacheView:
    """Mutable. Names of runs: `("task", id)`, `("slot", id)`, `("state", id)`, each with its shared part."""

    def __init__(self, held: HeldBlocks | None = None, engine: int = -1) -> None:
        """`held`: has the same of all engines, of which this is number `engine`."""
        self._index = PrefixIndex(held=held, engine=engine)
        self._slots: dict[int, int] = {}  # by task
        self._done: dict[int, int] = {}  # evaluated prompt tokens, by task

    @property
    def n_blocks(self) -> int:
        return self._index.n_blocks

    def n_cached(self, blocks: PromptBlocks) -> int:
        """Return how many of a prompt's first tokens need not be evaluated."""
        return max(self._index.n_cached(blocks.own), self._index.n_cached(blocks.shared))

    def on_submit(self, task: Task, blocks: PromptBlocks) -> None:
        self._put(("task", task.id), task, blocks.own)

    def on_result(self, result: TaskResult, task: Task, delivered: Sequence[int]) -> None:
        if isinstance(result, Admitted):
            own = self._index.run(_name(("task", task.id))) or prompt_blocks(task).own
            self._drop(("task", task.id))
            self._put(("slot", result.id_slot), task, own)
            self._slots[task.id], self._done[task.id] = result.id_slot, result.n_cached
        elif isinstance(result, Progress):
            self._done[task.id] = result.n_past
        elif isinstance(result, Tokens) and task.id in self._slots:
            self._done[task.id] = len(task.prompt)
        elif isinstance(result, Done) and task.id in self._slots:
            n = 0 if result.truncated else result.n_past
            held = hash_blocks([*task.prompt, *delivered][:n], _key(task))
            self._put(("slot", self._slots[task.id]), task, held)
            self._forget(task.id)

    def on_end(self, task: Task) -> None:
        """Note that a task has left before it was done: its slot has what was evaluated."""
        self._drop(("task", task.id))
        if task.id in self._slots:
            name = ("slot", self._slots[task.id])
            n = self._done[task.id]
            self._put(name, task, self._index.run(_name(name))[: n // BLOCK])
            self._forget(task.id)

    def on_action(self, action: SlotAction, report: SlotReport) -> None:
        if action.verb is Verb.FORK:
            for shared in (False, True):
                run = self._index.run(_name(("slot", action.source), shared))
                self._index.put(_name(("slot", report.id_slot), shared), run)
        elif action.verb in _EMPTIED:
            self._drop(("slot", report.id_slot))

    def on_cached(self, event: StateCached) -> None:
        for shared in (False, True):
            run = self._index.run(_name(("slot", event.id_slot), shared))
            self._index.put(_name(("state", event.state), shared), run)

    def on_evicted(self, event: StateEvicted) -> None:
        for state in event.states:
            self._drop(("state", state))

    def on_taken(self, slot: int) -> None:
        """Note that a slot has something unknown."""
        self._drop(("slot", slot))

    def clear(self) -> None:
        self._index.clear()
        self._slots.clear()
        self._done.clear()

    def _put(self, name: tuple[str, int], task: Task, own: Sequence[int]) -> None:
        self._index.put(_name(name), own)
        shared = task.prompt[: task.params.n_system] if task.tenant and own else []
        self._index.put(_name(name, True), hash_blocks(shared, _key(task, b"")))

    def _drop(self, name: tuple[str, int]) -> None:
        self._index.drop(_name(name))
        self._index.drop(_name(name, True))

    def _forget(self, task_id: int) -> None:
        self._slots.pop(task_id, None)
        self._done.pop(task_id, None)


def _name(name: tuple[str, int], shared: bool = False) -> tuple[str, int, bool]:
    return (*name, shared)


def _key(task: Task, tenant: bytes | None = None) -> bytes:
    return msgspec.msgpack.encode((task.params.lora, task.tenant if tenant is None else tenant))
