"""Streams without anything special give what the general way of advancing gives."""

from __future__ import annotations

import msgspec
import pytest

from corral.core.result import Done, StopType, Tokens
from corral.core.task import Task
from corral.engine import plain_stream
from tests.unit.engine_harness import EngineHarness, task
from tests.unit.fake import FakeBackend

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5] * 20]
MANY = 300  # more tokens than the context has room for


def results(*tasks: Task, **options) -> list[object]:
    """All results without their times."""
    bench = EngineHarness(FakeBackend(), **options)
    bench.run(*tasks)
    found = [event for event in bench.events if isinstance(event, Tokens | Done)]
    return [msgspec.structs.replace(each, timings=_timeless(each)) for each in found]


def _timeless(result: Tokens | Done):
    return msgspec.structs.replace(result.timings, prompt_ms=0.0, predicted_ms=0.0)


@pytest.mark.parametrize(
    "params",
    [
        {"n_predict": 8},
        {"n_predict": 0},
        {"n_predict": 1},
        {"n_predict": MANY},
        {"n_predict": 40, "stop": ("a",)},
        {"n_predict": 40, "stop": ("ab", "c")},
        {"n_predict": 40, "special": True},
    ],
)
@pytest.mark.parametrize("shifts", [True, False])
def test_plain_streams_take_the_same_decisions(monkeypatch, params, shifts):
    tasks = [task(i, prompt, seed=i, **params) for i, prompt in enumerate(PROMPTS)]
    plain = results(*tasks, context_shift=shifts)
    monkeypatch.setattr(plain_stream, "is_plain", lambda _: False)
    assert results(*tasks, context_shift=shifts) == plain


def test_a_full_context_ends_a_plain_stream():
    (done,) = [each for each in results(task(0, PROMPTS[0], n_predict=MANY)) if isinstance(each, Done)]
    assert done.stop_type is StopType.LIMIT
    assert done.truncated


def test_the_usual_stream_is_plain(monkeypatch):
    seen, is_plain = [], plain_stream.is_plain
    monkeypatch.setattr(plain_stream, "is_plain", lambda request: seen.append(is_plain(request)) or seen[-1])
    results(task(0, PROMPTS[0]), task(1, PROMPTS[1], max_repeats=3))
    assert sorted(seen) == [False, True]
