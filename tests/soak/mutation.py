"""Damaged GGUF files, made from good ones with a fixed seed: cut, flipped, spliced, doubled, not numbers.

Knows the format, nothing of who reads it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.soak.gguf_parts import ARRAY, SIZES, STRING, Map, Pair, Parts, take_apart, text

NUMBERS: tuple[int, ...] = (
    0,
    1,
    2,
    3,
    7,
    255,
    65_535,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 62) + 1,
)
NUMBERS += ((1 << 63) - 1, 1 << 63, (1 << 64) - 1)
FLOATS = tuple(struct.pack("<f", value) for value in (0.0, -1.0, 1e38, float("inf"), float("nan")))
WORDS = (
    b"",
    b"x",
    b"mamba",
    b"bert",
    b"gemma3",
    b"t5",
    b"llama",
    b"rwkv",
    b"none",
    b"gpt2",
    b"\xff\xfe",
    b"%s%n" * 9,
)
NAN, INF = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    content: bytes


def mutants(content: bytes, seed: int) -> Iterator[Mutant]:
    """All kinds of damage, hundreds of files for one."""
    parts, map = take_apart(content)
    assert parts.encode() == content, "this is no file to begin with"
    rng = random.Random(seed)
    yield from _cuts(content, map)
    yield from _flips(content, map, rng)
    yield from _numbers(content, map, rng)
    yield from _splices(content, map, rng)
    for change in (_without, _doubled, _retyped, _reworded, _renumbered, _rearranged, _displaced, _spoiled):
        yield from _rebuilt(parts, change, rng)


def sample(content: bytes, seed: int, n: int) -> list[Mutant]:
    """So many of them, of every kind about as many as there are."""
    found = list(mutants(content, seed))
    return random.Random(seed).sample(found, min(n, len(found)))


def _cuts(content: bytes, map: Map) -> Iterator[Mutant]:
    for at in sorted({*map.borders, *(border + 1 for border in map.borders), len(content) - 1}):
        if at < len(content):
            yield Mutant(f"cut at {at}", content[:at])


def _flips(content: bytes, map: Map, rng: random.Random) -> Iterator[Mutant]:
    for _ in range(200):
        bad = bytearray(content)
        places = [rng.randrange(map.n_header) for _ in range(rng.choice([1, 1, 1, 2, 8]))]
        for at in places:
            bad[at] ^= 1 << rng.randrange(8)
        yield Mutant(f"bits flipped at {places}", bytes(bad))


def _numbers(content: bytes, map: Map, rng: random.Random) -> Iterator[Mutant]:
    """Every length, count, type, size and offset, with some that it is not."""
    for at, n_bytes in map.numbers:
        old = int.from_bytes(content[at : at + n_bytes], "little")
        near = [old + 1, old - 1, old * 2, old << (8 * n_bytes - 8)]
        for value in rng.sample([*NUMBERS, *near], 4):
            new = (value % (1 << 8 * n_bytes)).to_bytes(n_bytes, "little")
            if new != content[at : at + n_bytes]:
                yield Mutant(
                    f"{value} instead of {old} at {at}", content[:at] + new + content[at + n_bytes :]
                )


def _splices(content: bytes, map: Map, rng: random.Random) -> Iterator[Mutant]:
    for _ in range(60):
        n, source, target = rng.randrange(1, 200), rng.randrange(map.n_header), rng.randrange(map.n_header)
        piece = content[source : source + n]
        behind = target + rng.choice([0, n])
        yield Mutant(f"{n} bytes from {source} at {target}", content[:target] + piece + content[behind:])


Change = Callable[[Parts, random.Random], Iterator[tuple[str, Parts]]]


def _rebuilt(parts: Parts, change: Change, rng: random.Random) -> Iterator[Mutant]:
    """Files whose form is right, and whose content is not."""
    for name, changed in change(parts, rng):
        yield Mutant(name, changed.encode())


def _without(parts: Parts, _: random.Random) -> Iterator[tuple[str, Parts]]:
    for i, pair in enumerate(parts.pairs):
        yield f"no {pair.key!r}", replace(parts, pairs=parts.pairs[:i] + parts.pairs[i + 1 :])
    for i, info in enumerate(parts.infos):
        yield f"no {info.name!r}", replace(parts, infos=parts.infos[:i] + parts.infos[i + 1 :])
    yield "no tensors", replace(parts, infos=[])
    yield "no keys", replace(parts, pairs=[])


def _doubled(parts: Parts, rng: random.Random) -> Iterator[tuple[str, Parts]]:
    for pair in rng.sample(parts.pairs, 5):
        yield f"{pair.key!r} twice", replace(parts, pairs=[*parts.pairs, pair])
    for info in rng.sample(parts.infos, 3):
        yield f"{info.name!r} twice", replace(parts, infos=[*parts.infos, info])


def _retyped(parts: Parts, rng: random.Random) -> Iterator[tuple[str, Parts]]:
    """Well-formed values of another type than the key has."""
    others = [
        (4, struct.pack("<I", 7)),
        (6, struct.pack("<f", 0.5)),
        (7, b"\1"),
        (STRING, text(b"seven")),
        (ARRAY, struct.pack("<IQI", 4, 1, 7)),
        (ARRAY, struct.pack("<IQ", STRING, 1) + text(b"x")),
        (ARRAY, struct.pack("<IQ", STRING, 0)),
        (11, struct.pack("<q", -7)),
    ]
    for i, pair in enumerate(parts.pairs):
        for type, value in rng.sample(others, 3):
            yield f"{pair.key!r} of type {type}", _with_pair(parts, i, Pair(pair.key, type, value))


def _reworded(parts: Parts, rng: random.Random) -> Iterator[tuple[str, Parts]]:
    for i, pair in enumerate(parts.pairs):
        if pair.type == STRING:
            for word in WORDS:
                yield f"{pair.key!r} is {word!r}", _with_pair(parts, i, replace(pair, value=text(word)))
        elif pair.type == ARRAY and pair.value[:4] == struct.pack("<I", STRING):
            yield from ((name, _with_pair(parts, i, bad)) for name, bad in _bad_words(pair, rng))
    for i in rng.sample(range(len(parts.infos)), 5):
        infos = [*parts.infos]
        infos[i] = replace(infos[i], name=rng.choice([b"x", b"blk.9999.attn_q.weight", b"\xff", b"a" * 63]))
        yield f"{parts.infos[i].name!r} is {infos[i].name!r}", replace(parts, infos=infos)


def _bad_words(pair: Pair, rng: random.Random) -> Iterator[tuple[str, Pair]]:
    """Lists of texts that are shorter, longer, all the same, empty, huge, or no texts."""
    n = struct.unpack_from("<Q", pair.value, 4)[0]
    makers: list[tuple[str, int, Callable[[int], bytes]]] = [
        ("shorter", n // 2, lambda i: b"t%d" % i),
        ("longer", n + 100, lambda i: b"t%d" % i),
        ("the same", n, lambda _: b"same"),
        ("empty", n, lambda _: b""),
        ("noise", n, lambda _: rng.randbytes(rng.randrange(20))),
        ("huge", n, lambda i: b"x" * (100_000 if i == 3 else 1)),
        ("spaces", n, lambda _: b" "),
    ]
    for name, n_words, make in makers:
        words = b"".join(text(make(i)) for i in range(n_words))
        yield f"{pair.key!r}: {name}", replace(pair, value=struct.pack("<IQ", STRING, n_words) + words)


def _renumbered(parts: Parts, rng: random.Random) -> Iterator[tuple[str, Parts]]:
    """Sizes of the model and ids of tokens that make no sense."""
    for i, pair in enumerate(parts.pairs):
        size = SIZES.get(pair.type, 0)
        if pair.type in (4, 5, 10, 11):
            for value in NUMBERS:
                new = (value % (1 << 8 * size)).to_bytes(size, "little")
                yield f"{pair.key!r} is {value}", _with_pair(parts, i, replace(pair, value=new))
        elif pair.type == 6:
            for number in FLOATS:
                yield f"{pair.key!r} is {number!r}", _with_pair(parts, i, replace(pair, value=number))
        elif pair.type == ARRAY and pair.value[:4] != struct.pack("<I", STRING):
            noise = pair.value[:12] + rng.randbytes(len(pair.value) - 12)
            yield f"{pair.key!r} is noise", _with_pair(parts, i, replace(pair, value=noise))
            yield (
                f"{pair.key!r} is empty",
                _with_pair(parts, i, replace(pair, value=pair.value[:4] + bytes(8))),
            )


def _rearranged(parts: Parts, rng: random.Random) -> Iterator[tuple[str, Parts]]:
    """Two swap what they are."""
    for _ in range(12):
        i, j = rng.sample(range(len(parts.infos)), 2)
        infos, one, other = [*parts.infos], parts.infos[i], parts.infos[j]
        infos[i], infos[j] = replace(one, name=other.name), replace(other, name=one.name)
        yield f"{one.name!r} and {other.name!r} swapped", replace(parts, infos=infos)
        pairs = [*parts.pairs]
        i, j = rng.sample(range(len(pairs)), 2)
        pairs[i], pairs[j] = replace(pairs[i], key=pairs[j].key), replace(pairs[j], key=pairs[i].key)
        yield f"{pairs[i].key!r} and {pairs[j].key!r} swapped", replace(parts, pairs=pairs)


def _displaced(parts: Parts, rng: random.Random) -> Iterator[tuple[str, Parts]]:
    for i in rng.sample(range(len(parts.infos)), 6):
        old = parts.infos[i]
        flat = (old.shape[0] * 2, *old.shape[1:])
        news = [
            replace(old, offset=rng.choice([0, 32, old.offset + 1, len(parts.data), (1 << 64) - 32])),
            replace(old, shape=flat),
            replace(old, shape=old.shape[::-1]),
            replace(old, shape=(*old.shape, 1, 1)[:4]),
            replace(old, shape=(1 << 62, 4)),
            replace(old, type=rng.choice([1, 2, 8, 10, 14, 24, 30, 39])),
        ]
        for new in news:
            infos = [*parts.infos]
            infos[i] = new
            yield f"{old} is {new}", replace(parts, infos=infos)


def _spoiled(parts: Parts, rng: random.Random) -> Iterator[tuple[str, Parts]]:
    """Weights that are not numbers, or noise."""
    n = len(parts.data) // 4
    for name, data in (
        ("all NaN", NAN * n),
        ("all infinite", INF * n),
        ("all 0", bytes(4 * n)),
        ("noise", rng.randbytes(4 * n)),
    ):
        yield f"weights: {name}", replace(parts, data=data + parts.data[4 * n :])
    for info in rng.sample(parts.infos, 4):
        data = parts.data[: info.offset] + NAN + parts.data[info.offset + 4 :]
        yield f"one NaN in {info.name!r}", replace(parts, data=data)


def _with_pair(parts: Parts, i: int, pair: Pair) -> Parts:
    return replace(parts, pairs=[*parts.pairs[:i], pair, *parts.pairs[i + 1 :]])
