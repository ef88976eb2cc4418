"""Lines of batches: below everything else, and repeated exactly when they had to yield."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from corral.core.result import Admitted, Done, Tokens, Vectors
from corral.core.task import Embed, Task
from tests.tools.examples import examples
from tests.unit.engine_harness import EngineHarness, alone, task
from tests.unit.fake import FakeBackend

PROMPT = [3] * 20


def line(id: int, prompt: list[int], **options) -> Task:
    return msgspec.structs.replace(task(id, prompt, **options), is_batch=True, client="batch")


def steps(bench: EngineHarness, n: int) -> None:
    for _ in range(n):
        bench.engine.step()
        bench.check_mirrors()


def test_a_request_takes_the_slot_of_a_line_within_one_step():
    bench = EngineHarness(FakeBackend(n_seq=1))
    one, two = line(1, PROMPT, n_predict=12), task(2, [5] * 30, n_predict=4)
    bench.engine.handle(one)
    steps(bench, 6)
    n_before = len(bench.tokens(1))
    assert 0 < n_before < 12
    bench.engine.handle(two)
    bench.engine.step()
    assert bench.of(2, Admitted)
    while not bench.of(2, Done):
        bench.engine.step()
    assert len(bench.tokens(1)) == n_before
    bench.run()
    assert bench.tokens(1) == alone(one, n_seq=1)
    assert bench.tokens(2) == alone(two, n_seq=1)
    assert len(bench.of(1, Done)) == 1


def test_lines_pause_while_a_request_runs_in_another_slot():
    bench = EngineHarness(FakeBackend(n_seq=2))
    bench.engine.handle(line(1, PROMPT, n_predict=12))
    steps(bench, 4)
    bench.engine.handle(task(2, [5] * 30, n_predict=6))
    bench.engine.step()
    n_before = len(bench.tokens(1))
    while not bench.of(2, Done):
        bench.engine.step()
    assert len(bench.tokens(1)) == n_before
    bench.run()
    assert bench.tokens(1) == alone(line(1, PROMPT, n_predict=12), n_seq=2)


def test_a_request_does_not_wait_for_the_same_prompt_of_a_paused_line():
    bench = EngineHarness(FakeBackend(n_seq=3, n_ubatch=16, n_batch=16), max_itl_ms=1)
    bench.engine.handle(line(1, [4] * 90, n_predict=2))
    bench.engine.step()
    bench.engine.handle(task(2, [4] * 90, n_predict=2))
    bench.run()
    first = next(i for i, e in enumerate(bench.events) if isinstance(e, Tokens) and e.task_id == 2)
    assert not any(isinstance(e, Tokens) and e.task_id == 1 for e in bench.events[:first])
    assert bench.tokens(1) == bench.tokens(2)


def test_inputs_of_batches_are_embedded_last():
    bench = EngineHarness()
    bench.engine.handle(Embed(id=1, inputs=[[2, 3], [4] * 5], is_batch=True))
    bench.engine.handle(Embed(id=2, inputs=[[2, 3]]))
    bench.run()
    order = [e.task_id for e in bench.events if isinstance(e, Vectors)]
    assert order == [2, 1, 1]


kinds = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(1, 4), min_size=1, max_size=40), st.integers(1, 10)),
    min_size=1,
    max_size=10,
)


@given(kinds, st.data(), st.integers(1, 3), st.booleans())
@examples(150)
def test_all_end_once_and_answer_as_if_alone(specs, data, n_seq, mixes):
    bench = EngineHarness(FakeBackend(n_seq=n_seq, n_ubatch=16, n_batch=32, mixes_batches=mixes))
    make = {True: line, False: task}
    all_tasks = [make[is_batch](i, prompt, n_predict=n) for i, (is_batch, prompt, n) in enumerate(specs)]
    for each in all_tasks:
        bench.engine.handle(each)
        for _ in range(data.draw(st.integers(0, 6))):
            if bench.engine.has_work:
                bench.engine.step()
                bench.check_mirrors()
    bench.run()
    for each in all_tasks:
        assert len(bench.of(each.id, Done)) == 1
        assert bench.tokens(each.id) == alone(each)
    assert all(not sampler.is_open for sampler in bench.backend.samplers)
    assert all(slot.is_idle for slot in bench.slots)
