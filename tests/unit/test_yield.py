"""A prompt of a batch that is being evaluated is aborted when other work comes, and evaluated again later."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.engine_harness import EngineHarness, alone, task
from tests.unit.fake import FakeBackend

LONG = [3, 4, 5] * 30


class Busy(FakeBackend):
    """While it evaluates the first prompt, a new task comes."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.bench: EngineHarness
        self.newcomer = task(2, [7] * 40)
        self.statuses: list[str] = []

    def decode(self, chunks):
        if not self.statuses:
            self.bench.engine.handle(self.newcomer)
            self.bench.engine.abort_if_yielding()
        status = super().decode(chunks)
        self.statuses.append(status.value)
        return status


def run(is_batch: bool, **options) -> Busy:
    backend = Busy(**options)
    bench = backend.bench = EngineHarness(backend)
    bench.run(msgspec.structs.replace(task(1, LONG), is_batch=is_batch))
    assert bench.tokens(1) == alone(task(1, LONG))
    assert bench.tokens(2) == alone(backend.newcomer)
    return backend


@pytest.mark.parametrize("n_seq", [1, 2])
def test_the_prompt_of_a_batch_is_aborted(n_seq):
    backend = run(is_batch=True, n_seq=n_seq)
    assert backend.statuses[0] == "aborted"
    assert backend.statuses.count("aborted") == 1
    assert set(backend.batches[0][0].tokens.tolist()) == {7}


def test_nor_do_other_prompts_of_batches_run_before_the_new_task():
    backend = Busy(n_seq=4)
    bench = backend.bench = EngineHarness(backend)
    lines = [task(id, [3 + id, 4, 5] * 30) for id in (10, 11, 12)]
    bench.run(*(msgspec.structs.replace(line, is_batch=True) for line in lines))
    assert backend.statuses.count("aborted") == 1
    assert set(backend.batches[0][0].tokens.tolist()) == {7}
    for line in lines:
        assert bench.tokens(line.id) == alone(line)


def test_nor_do_they_if_it_comes_while_a_step_is_planned():
    """Then the engine has not handled it yet."""
    backend = FakeBackend(n_seq=2)
    engine = EngineHarness(backend).engine
    engine.handle(msgspec.structs.replace(task(1, LONG), is_batch=True))
    engine.abort_if_yielding()
    engine.step()
    assert backend.batches == []
    engine.handle(task(2, [7] * 40))
    engine.step()
    assert set(backend.batches[0][0].tokens.tolist()) == {7}


def test_other_prompts_are_not():
    assert "aborted" not in run(is_batch=False, n_seq=2).statuses


def test_nor_what_could_not_be_taken_back():
    assert "aborted" not in run(is_batch=True, n_seq=2, can_cut=False).statuses


def test_nothing_runs():
    EngineHarness().engine.abort_if_yielding()
