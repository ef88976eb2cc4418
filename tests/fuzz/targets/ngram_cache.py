"""Files of `--lookup-cache-static` and `--lookup-cache-dynamic`."""

from __future__ import annotations

from corral.engine.ngram_cache import NgramCache
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

_N_VOCAB = 64


def parse(data: bytes) -> None:
    cache = NgramCache.decode(data, _N_VOCAB)
    assert NgramCache.decode(cache.encode(), _N_VOCAB).encode() == cache.encode()


def _learned(*texts: list[int]) -> bytes:
    cache = NgramCache()
    for text in texts:
        cache.learn(text)
    return cache.encode()


SEEDS = [_learned([1, 2, 3, 1, 2, 3, 1, 2]), _learned(list(range(60))), b""]
TARGET = Target("ngram_cache", parse, SEEDS, mutated(SEEDS), (ValueError,))
