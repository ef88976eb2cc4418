"""What waits for a reader that is too slow is bounded."""

from __future__ import annotations

import pytest

from corral.core.errors import CorralError
from corral.core.result import Timings, TokenProb, TokenProbs, Tokens
from corral.core.top_probs import TopProbs
from corral.link.stream import MAX_WAITING, MAX_WAITING_PROBS, TaskStream

TIMINGS = Timings(cache_n=0, prompt_n=0, prompt_ms=0, predicted_n=0, predicted_ms=0)


def tokens(n_probs: int) -> Tokens:
    probs = [TokenProbs(TokenProb(1, 0.5), TopProbs.of([TokenProb(1, 0.5)] * n_probs))]
    return Tokens(task_id=0, tokens=[1], text="a", probs=probs, timings=TIMINGS)


@pytest.mark.parametrize("n_probs", [0, 1000])
async def test_too_many_results_end_the_task(n_probs):
    closed: list[bool] = []
    stream = TaskStream(lambda: closed.append(True))
    n_most = MAX_WAITING_PROBS // n_probs if n_probs else MAX_WAITING
    result = tokens(n_probs)
    for _ in range(n_most):
        stream.put(result)
    assert not closed
    stream.put(result)
    assert closed
    reader = aiter(stream)
    for _ in range(n_most):
        await anext(reader)
    with pytest.raises(CorralError, match="too slowly"):
        await anext(reader)


async def test_what_is_read_makes_room():
    closed: list[bool] = []
    stream = TaskStream(lambda: closed.append(True))
    reader, result = aiter(stream), tokens(MAX_WAITING_PROBS)
    for _ in range(5):
        stream.put(result)
        await anext(reader)
    assert not closed
