"""Mutations of bytes: flipped bits, cuts, other numbers for lengths, splices, repeats, known words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.fuzz.target import MAX_BYTES, Mutator

NUMBERS: tuple[int, ...] = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 1 << 20, (1 << 31) - 1, 1 << 31)
NUMBERS += ((1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_MAX_CHANGES = 6
_MAX_PIECE = 64
_TIMES = (2, 8, 100, 4000)


def mutated(
    seeds: Sequence[bytes], words: Sequence[bytes] = (), finish: Callable[[bytes], bytes] = bytes
) -> Mutator:
    """Mutate a seed a few times. `finish` repairs what a parser would refuse at once, such as checksums, in
    half of the cases."""
    changes = [_flip, _cut, _drop, _put_number, _repeat, _insert, _splicer(seeds)]
    if words:
        changes += [_inserter(words)] * 2

    def mutate(rng: random.Random) -> bytes:
        data = rng.choice(seeds)
        for _ in range(rng.randint(1, _MAX_CHANGES)):
            data = rng.choice(changes)(data, rng)[:MAX_BYTES]
        return finish(data)[:MAX_BYTES] if rng.random() < 0.5 else data

    return mutate


def either(*mutators: Mutator) -> Mutator:
    return lambda rng: rng.choice(mutators)(rng)


Change = Callable[[bytes, random.Random], bytes]


def _flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) or 1)
    flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in data[at : at + 1])
    return data[:at] + flipped + data[at + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _drop(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.randint(1, _MAX_PIECE) :]


def _put_number(data: bytes, rng: random.Random) -> bytes:
    at, n = rng.randint(0, len(data)), rng.choice((1, 2, 4, 8))
    value = rng.choice((rng.choice(NUMBERS), rng.randint(0, 300)))
    number = (value % (1 << 8 * n)).to_bytes(n, rng.choice(("little", "big")))
    return data[:at] + number + data[at + n :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    at, n = rng.randint(0, len(data)), rng.randint(1, _MAX_PIECE)
    return data[:at] + data[at : at + n] * rng.choice(_TIMES) + data[at + n :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    return _put(data, rng.randbytes(rng.randint(1, 16)), rng)


def _splicer(seeds: Sequence[bytes]) -> Change:
    def splice(data: bytes, rng: random.Random) -> bytes:
        other = rng.choice(seeds)
        start = rng.randint(0, len(other))
        return _put(data, other[start : start + rng.randint(1, _MAX_PIECE)], rng)

    return splice


def _inserter(words: Sequence[bytes]) -> Change:
    return lambda data, rng: _put(data, rng.choice(words), rng)


def _put(data: bytes, piece: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + piece + data[at:]
