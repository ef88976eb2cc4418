"""A task that moves to another engine with its state continues as if it had stayed."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.params import GenerationParams, ReasoningBudget, SamplingParams
from corral.core.result import Admitted, Done, Failed, HandedOver, PromptProbs, Tokens
from corral.core.task import HandOver, Task
from tests.tools.examples import examples
from tests.unit.engine_harness import EngineHarness, grammar, task
from tests.unit.fake import FakeBackend

COMMAND = 99
prompts = st.lists(st.integers(1, 60), min_size=1, max_size=60)


class Move:
    """A task in one engine for some steps, then in another one."""

    def __init__(self, one: Task, n_steps: int, backend: Any = FakeBackend, **options) -> None:
        self.here, self.there = EngineHarness(backend(), **options), EngineHarness(backend(), **options)
        self.here.engine.handle(one)
        for _ in range(n_steps):
            if self.here.engine.has_work:
                self.here.engine.step()
        self.is_over = bool(self.here.of(0, Done))
        if not self.is_over:
            self._move(one)

    def _move(self, one: Task) -> None:
        fd = os.memfd_create("state")
        self.here.run(HandOver(id=COMMAND, task_id=0, fd=os.dup(fd)))
        self.answer = next(event for event in self.here.events if getattr(event, "task_id", -1) == COMMAND)
        n_past = self.answer.n_past if isinstance(self.answer, HandedOver) else 0
        delivered = self.here.tokens(0)
        sent_fd = os.dup(fd) if n_past else -1
        os.close(fd)
        self.there.run(msgspec.structs.replace(one, resume=delivered, n_past=n_past, fd=sent_fd))

    @property
    def is_handed_over(self) -> bool:
        return not self.is_over and isinstance(self.answer, HandedOver)

    def result(self) -> tuple[Any, ...]:
        """What its client sees."""
        ends = [each.of(0, Done) for each in (self.here, self.there)]
        (done,) = ends[0] or ends[1]
        benches = [self.here, self.there]
        probs = [p for bench in benches for e in bench.of(0, Tokens) for p in e.probs]
        seen = (done.stop_type, done.stopping_word, done.truncated, done.n_past, done.timings.predicted_n)
        tokens = [token for bench in benches for token in bench.tokens(0)]
        return tokens, "".join(bench.text(0) for bench in benches), probs, *seen

    @property
    def shapes(self) -> list[int]:
        """In how many tokens each the prompt and the answer were evaluated."""
        batches = [*self.here.backend.batches, *self.there.backend.batches]
        return [len(chunk.tokens) for batch in batches for chunk in batch]


def undisturbed(one: Task, backend: Any = FakeBackend, **options) -> Move:
    return Move(one, 5000, backend, **options)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "probabilities": {"sampling": SamplingParams(seed=3, n_probs=2)},
    "stop strings": {"stop": ("ab", "q", "é e")},
    "a grammar that forces": {"constraint": grammar("abCDEfGHi jKLM.é")},
    "a limit on repetitions": {"max_repeats": 3},
    "a limit on reasoning": {
        "reasoning_budget": ReasoningBudget(n_tokens=4, start="<", end=">", end_tokens=(5, 6), is_open=True)
    },
    "probabilities of the prompt": {"n_prompt_probs": 1},
}


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)
@given(prompt=prompts, n_predict=st.integers(1, 40), n_steps=st.integers(1, 40))
@examples(25)
def test_a_moved_answer_equals_the_undisturbed_one(is_exact, params, prompt, n_predict, n_steps):
    one = Task(id=0, prompt=prompt, params=GenerationParams(**{"n_predict": n_predict, **params}))
    backend = partial(FakeBackend, keeps_exact=is_exact)
    stayed, moved = undisturbed(one, backend), Move(one, n_steps, backend)
    assert moved.result() == stayed.result()
    if moved.is_handed_over:
        assert moved.shapes == stayed.shapes


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 150), st.integers(1, 150))
@examples(60)
def test_a_shifted_context_moves_too(prompt, n_predict, n_steps):
    def small() -> FakeBackend:
        return FakeBackend(n_ctx=60)

    one = task(0, prompt, n_predict=n_predict, n_keep=3)
    moved = Move(one, n_steps, small, context_shift=True)
    assert moved.is_handed_over or moved.is_over
    assert moved.result() == undisturbed(one, small, context_shift=True).result()


@given(prompts, st.integers(1, 30), st.integers(1, 30))
@examples(40)
def test_a_memory_that_cannot_be_cut_moves_too(prompt, n_predict, n_steps):
    def fixed() -> FakeBackend:
        return FakeBackend(can_cut=False)

    one = task(0, prompt, n_predict=n_predict)
    assert Move(one, n_steps, fixed).result() == undisturbed(one, fixed).result()


def test_nothing_is_evaluated_again():
    one = task(0, [3] * 50, n_predict=30)
    moved = Move(one, 10)
    (batch, *_) = moved.there.backend.batches
    assert [len(chunk.tokens) for chunk in batch] == [1]
    assert moved.there.of(0, Admitted)[0].n_cached == 50
    assert moved.there.done(0).timings.predicted_n == 30


def test_the_engine_that_gave_a_task_away_says_nothing_more_of_it():
    moved = Move(task(0, [3] * 50, n_predict=30), 10)
    assert not moved.here.engine.has_work
    assert not moved.here.of(0, Done)
    assert not moved.here.of(0, Failed)


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "no descriptor"])
def test_a_state_that_cannot_be_read_is_evaluated_again(damage):
    one = task(0, [3] * 50, n_predict=30)
    expected = undisturbed(one).result()
    here, there = EngineHarness(), EngineHarness()
    here.engine.handle(one)
    for _ in range(10):
        here.engine.step()
    fd = os.memfd_create("state")
    here.run(HandOver(id=COMMAND, task_id=0, fd=os.dup(fd)))
    (answer,) = here.of(COMMAND, HandedOver)
    if damage == "changed":
        os.pwrite(fd, b"?", 100)
    elif damage != "no descriptor":
        os.ftruncate(fd, 0 if damage == "empty" else 300)
    sent = -1 if damage == "no descriptor" else fd
    there.run(msgspec.structs.replace(one, resume=here.tokens(0), n_past=answer.n_past, fd=sent))
    assert here.tokens(0) + there.tokens(0) == expected[0]
    assert there.backend.n_prompt_tokens_evaluated > 50


@pytest.mark.parametrize("is_readable", [False, True])
def test_a_task_whose_state_cannot_be_written_continues_where_it_was(is_readable, tmp_path):
    """Nor one whose state cannot be read."""
    one = task(0, [3] * 50, n_predict=30)
    bench = EngineHarness()
    bench.engine.handle(one)
    for _ in range(10):
        bench.engine.step()
    bench.backend.flush_pending = lambda _: is_readable
    (tmp_path / "state").touch()
    bench.run(HandOver(id=COMMAND, task_id=0, fd=os.open(tmp_path / "state", os.O_RDONLY)))
    assert bench.of(COMMAND, Failed)
    assert bench.tokens(0) == undisturbed(one).result()[0]
    assert len(bench.of(0, Done)) == 1


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(mirostat=2),
        SamplingParams(xtc_probability=0.5),
        SamplingParams(samplers=("top_k", "adaptive_p")),
    ],
    ids=["mirostat", "xtc", "adaptive_p"],
)
def test_what_depends_on_earlier_logits_stays_and_is_repeated_one_by_one(sampling):
    one = Task(id=0, prompt=[3] * 50, params=GenerationParams(sampling=sampling, n_predict=20))
    moved = Move(one, 10)
    assert isinstance(moved.answer, Failed)
    assert moved.result() == undisturbed(one).result()
    assert max(len(chunk.tokens) for batch in moved.there.backend.batches[2:] for chunk in batch) == 1


@pytest.mark.parametrize("fd", [-1, 1])
def test_a_task_that_has_ended_cannot_be_handed_over(fd):
    bench = EngineHarness()
    bench.run(task(0, [3] * 20, n_predict=2))
    bench.run(HandOver(id=COMMAND, task_id=0, fd=os.memfd_create("state") if fd > 0 else -1))
    assert bench.of(COMMAND, Failed)
    assert not bench.of(0, PromptProbs)
