"""On a GPU a slot's state goes to host memory only if evaluating it again takes much longer than the copy."""

from __future__ import annotations

import pytest

from tests.unit.engine_harness import EngineHarness, task
from tests.unit.fake import FakeBackend


class SlowCopies(FakeBackend):
    """Copies take as long as the test says; a token takes a millisecond."""

    def __init__(self, seconds: float, uses_gpu: bool) -> None:
        super().__init__(n_seq=1)
        self.seconds, self.uses_gpu, self.n_saves = seconds, uses_gpu, 0
        self.bench: EngineHarness

    def decode(self, chunks):
        self.bench.now += sum(len(chunk.tokens) for chunk in chunks) / 1e3
        return super().decode(chunks)

    def save(self, seq, memory=None):
        self.n_saves += 1
        self.bench.now += self.seconds
        return super().save(seq, memory)


@pytest.mark.parametrize(
    ("seconds", "uses_gpu", "n_saves"),
    [(1.0, False, 3), (1.0, True, 1), (0.0, True, 3)],
    ids=["on a CPU always", "a slow copy is not tried again", "a fast copy pays"],
)
def test_states_are_copied_if_that_pays(seconds, uses_gpu, n_saves):
    backend = SlowCopies(seconds, uses_gpu)
    bench = backend.bench = EngineHarness(backend)
    bench.engine.warm_up()
    for i in range(4):
        bench.run(task(i, [i + 1] * 80))
    assert backend.n_saves == n_saves
