"""What checkpoints save in the second turn of a chat, on a model whose memory cannot be cut."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.client import complete
from bench.process import Corral
from bench.section import Section
from bench.setup import AS_GIVEN, Setup
from tests.tools.tiny_hybrid import hybrid

N_TOKENS = 2000
N_NEW = 16
_ROUNDS = 3
_LETTERS = range(65, 91)


async def measure_checkpoint(_setup: Setup, section: Section) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = hybrid(Path(directory))
        with closing(Corral(str(model), *AS_GIVEN, "-c", 4096, "-np", 1)) as corral:
            rounds = [await _second_turn(corral.url, i) for i in range(_ROUNDS)]
    anew = statistics.median(ms for ms, _ in rounds)
    cached = statistics.median(ms for _, ms in rounds)
    section.at_least(
        f"second turn after {N_TOKENS} tokens, hybrid model, over evaluating",
        anew / cached,
        20,
        "x",
        {"evaluated ms": anew, "from a checkpoint ms": cached},
    )


async def _second_turn(url: str, i: int) -> tuple[float, float]:
    """Return the time to evaluate the prompt of a second turn, and to continue from a checkpoint. The history
    has another answer than was generated, as it does without the reasoning."""
    first = [_LETTERS[(j * j * 7 + i * 5 + j) % len(_LETTERS)] for j in range(N_TOKENS)]
    second = [*first, *(_LETTERS[(j * 3 + i) % len(_LETTERS)] for j in range(N_NEW))]
    options: dict[str, Any] = {"id_slot": 0, "n_predict": 4}
    other = [_LETTERS[-1] + 1, *second[1:]]  # nothing of it is of use to the others
    evaluated = (await complete(url, prompt=other, cache_prompt=False, **options)).last["timings"]
    await complete(url, prompt=first, cache_prompt=False, **options)
    cached = (await complete(url, prompt=second, **options)).last["timings"]
    assert evaluated["cache_n"] == 0
    assert cached["cache_n"] > N_TOKENS - 16, "no checkpoint was used"
    return evaluated["prompt_ms"], cached["prompt_ms"]
