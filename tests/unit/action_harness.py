"""The engine on a fake backend with slot actions: it waits for files."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from corral.core.chunk import DecodeStatus
from corral.core.errors import CorralError
from corral.core.result import Admitted, Failed, SlotReport
from corral.core.task import SlotAction
from corral.engine.ses1 import Ses1
from tests.unit.engine_harness import EngineHarness
from tests.unit.fake import FakeBackend

LONG = [1 + i % 61 for i in range(100)]
OTHER = [61 - i % 61 for i in range(100)]
SECONDS = 20.0  # for what takes milliseconds


class ActionHarness(EngineHarness):
    """A bench that can wait for files."""

    def __init__(self, backend: FakeBackend | None = None, **options) -> None:
        super().__init__(backend, **options)
        self._ids = itertools.count(1000)

    def run(self, *orders: Any) -> None:
        for order in orders:
            self.engine.handle(order)
        deadline = time.monotonic() + SECONDS
        while self.engine.has_work:
            assert time.monotonic() < deadline, "the engine does not come to an end"
            if self.engine.is_waiting:
                time.sleep(0.0005)
            self.engine.step()
            self.check_mirrors()

    def order(self, verb, slot=0, fd=-1, **fields) -> SlotAction:
        """An action; like the engine's reader, it owns a descriptor of its own."""
        fd = os.dup(fd) if fd >= 0 else -1
        return SlotAction(id=next(self._ids), verb=verb, slot=slot, fd=fd, **fields)

    def do(self, verb, slot=0, fd=-1, **fields) -> SlotReport:
        action = self.order(verb, slot, fd, **fields)
        self.run(action)
        return self.answer(action)

    def answer(self, action) -> SlotReport:
        (event,) = [event for event in self.events if event.task_id == action.id]
        if isinstance(event, Failed):
            raise CorralError.from_info(event.error)
        return event

    def step_until(self, condition) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            self.engine.step()

    def is_answered(self, action) -> bool:
        return any(event.task_id == action.id for event in self.events)

    def cached(self, one) -> int:
        """How many tokens of its prompt a task finds."""
        self.run(one)
        (admitted,) = self.of(one.id, Admitted)
        return admitted.n_cached

    def report(self, one):
        self.run(msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, cache_report=True)))
        (admitted,) = self.of(one.id, Admitted)
        assert admitted.report.n_cached == admitted.n_cached
        return admitted.report

    def sync_disk(self) -> None:
        self.engine._kv._disk._files.submit(int).result(SECONDS)


def refused(status, match):
    return pytest.raises(CorralError, match=match, check=lambda error: error.status == status)


def n_open_files():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:state" in os.readlink(link) for link in links if os.path.lexists(link))


def content(lab, slot=0):
    return lab.slots[slot].tokens.view.tolist()


@contextlib.contextmanager
def held_up(monkeypatch, name):
    """File work that does not end before the block does."""
    go, method = threading.Event(), getattr(Ses1, name)
    began = threading.Event()

    def slow(*args, **options):
        began.set()
        assert go.wait(SECONDS)
        return method(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Ses1, name, slow)
        yield began
        go.set()


class ExactBackend(FakeBackend):
    """Tokens also remember what they were evaluated behind, as keys and values do: moved ones differ."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.memories: list[list[int]] = [[] for _ in range(self.n_seq)]

    def decode(self, chunks):
        status = super().decode(chunks)
        if status is DecodeStatus.OK:
            for i, chunk in enumerate(chunks):
                memory = self.memories[chunk.seq]
                for token in chunk.tokens.tolist():
                    memory.append(hash((token, *memory)))
                self._logits[i] = [np.array([memory[-1] % 100003], np.float64)]
        return status

    def trim(self, seq, n):
        is_trimmed = super().trim(seq, n)
        del self.memories[seq][len(self.sequences[seq]) :]
        return is_trimmed

    def share_prefix(self, src, dst, n):
        self.memories[dst] = list(self.memories[src])
        return super().share_prefix(src, dst, n)

    def move(self, seq, start, end, to):
        super().move(seq, start, end, to)
        self.memories[seq][to : to + end - start] = self.memories[seq][start:end]

    def save(self, seq, memory=None):
        pairs = list(zip(self.sequences[seq], self.memories[seq], strict=True))
        return b"MAGICseq" + pickle.dumps(pairs)

    def load(self, seq, state, position):
        pairs = pickle.loads(state[8:])
        assert len(pairs) == position
        self.sequences[seq] = [token for token, _ in pairs]
        self.memories[seq] = [memory for _, memory in pairs]
        return True
