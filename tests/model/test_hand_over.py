"""A task that moves to another engine with its state has the bits that it would have had in its own."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from corral.core.params import SamplingParams
from corral.core.result import Admitted, HandedOver, TokenProbs
from corral.core.task import HandOver, Task
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, alone, task
from tests.model.test_engine import RESTORABLE, TINY, on

COMMAND = 99
PENALIZED = msgspec.structs.replace(SEEDED, repeat_penalty=1.3, dry_multiplier=0.8)


def moved(model: Path, one: Task, n_tokens: int, **options) -> list[TokenProbs]:
    """What a task answers whose engine gives it away after some tokens."""
    with LlamaHarness(model, **options) as here, LlamaHarness(model, **options) as there:
        here.engine.handle(one)
        here.step_until(lambda: len(here.tokens(0)) >= n_tokens)
        fd = os.memfd_create("state")
        here.run(HandOver(id=COMMAND, task_id=0, fd=os.dup(fd)))
        (given,) = [event for event in here.events if isinstance(event, HandedOver)]
        there.run(msgspec.structs.replace(one, resume=here.tokens(0), n_past=given.n_past, fd=fd))
        (admitted,) = [event for event in there.events if isinstance(event, Admitted)]
        assert admitted.n_cached == len(one.prompt)
        assert there.chunk_sizes == [], "nothing is evaluated again"
        return here.answer(0) + there.answer(0)


@on(*TINY)
@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, PENALIZED], ids=["greedy", "seeded", "penalties"])
def test_a_moved_answer_equals_the_undisturbed_one(model, is_exact: bool, sampling: SamplingParams):
    options = {"batch_exact": "on" if is_exact else "off"}
    with LlamaHarness(model) as bench:
        one = task(0, bench.prompt(40), sampling, n_predict=40)
    expected = alone(model, one, **options)
    assert len(expected) == 40
    for n_tokens in (1, 7, 38):
        assert moved(model, one, n_tokens, **options) == expected


@on(*RESTORABLE)
def test_a_shifted_context_moves_too(model):
    options = {"n_ctx_slot": 256, "context_shift": True}
    with LlamaHarness(model) as bench:
        one = task(0, bench.prompt(50), SEEDED, n_predict=400, n_keep=3)
    assert moved(model, one, 300, **options) == alone(model, one, **options)
