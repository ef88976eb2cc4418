"""Files of `--journal`, torn and damaged: what is whole before the damage is read."""

from __future__ import annotations

from corral.core.client import ANONYMOUS
from corral.core.params import GenerationParams
from corral.core.result import Admitted, Done, StopType, TaskResult, Timings, TokenProb, TokenProbs, Tokens
from corral.core.task import Task
from corral.core.top_probs import TopProbs
from corral.storage.journal_record import (
    JournalHeader,
    encode_end,
    encode_opening,
    encode_result,
    read_history,
)
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

_TIMINGS = Timings(cache_n=1, prompt_n=2, prompt_ms=3.5, predicted_n=1, predicted_ms=5.5)
_PROBS = [TokenProbs(TokenProb(1, 0.5), TopProbs.of([TokenProb(2, 0.25), TokenProb(3, 0.125)]))]


def parse(data: bytes) -> None:
    history = read_history(data)
    if history is None:
        raise ValueError
    again = read_history(data[: history.n_bytes])
    assert again is not None
    assert again == history
    for i in range(len(history.opening.tasks)):
        history.tokens(i)


OPENING = JournalHeader(
    id="stream_1",
    client=ANONYMOUS,
    path="/completion",
    headers={"content-type": "application/json"},
    body=b'{"prompt": "a", "stream": true}',
    seed=bytes(16),
    created=1,
    build="b1",
    model="m",
    tasks=[Task(prompt=[1, 2], params=GenerationParams()), Task(prompt=[1, 2], params=GenerationParams())],
)
RESULTS: list[tuple[int, TaskResult]] = [
    (0, Admitted(0, 1, 2)),
    (0, Tokens(task_id=0, tokens=[5], text="é", timings=_TIMINGS)),
    (1, Tokens(task_id=1, tokens=[70000, 3], text="", probs=_PROBS, timings=_TIMINGS)),
    (
        0,
        Done(
            task_id=0, stop_type=StopType.EOS, truncated=False, has_new_line=False, n_past=3, timings=_TIMINGS
        ),
    ),
]
WHOLE = (
    encode_opening(OPENING)
    + b"".join(encode_result(choice, result, 2, keeps_timings=choice == 1) for choice, result in RESULTS)
    + encode_end(3)
)
SEEDS = [WHOLE, WHOLE[:-5], encode_opening(OPENING)]
TARGET = Target("journal", parse, SEEDS, mutated(SEEDS), (ValueError,))
