"""Mutations of JSON values: parts replaced, removed, renamed, wrapped, or taken from another value."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from tests.fuzz.target import MAX_BYTES, Mutator

EDGES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    1.5,
    2**31,
    2**53,
    2**63,
    -(2**63),
    1e308,
    -1e308,
    "",
    "a",
    "é\n\0",
)
EDGES += ("x" * 2000, [], {}, [[]], {"": None}, [None], list(range(200)))
_MAX_CHANGES = 6
_TIMES = (1, 2, 70, 400)
_Place = tuple[Any, Any]  # a container, and an index or key in it
_Change = Callable[[Any, Any, random.Random], object]


def mutated_values(seeds: Sequence[Any], names: Sequence[str]) -> Mutator:
    """Mutate a value a few times; as JSON. `names`: keys that mean something to the parser."""
    texts = [orjson.dumps(seed) for seed in seeds]
    changes = [_replace, _remove, _grafter(texts), _renamer(names), _adder(names), _wrapper(names)]

    def mutate(rng: random.Random) -> bytes:
        text = rng.choice(texts)
        for _ in range(rng.randint(1, _MAX_CHANGES)):
            text = _apply(text, rng.choice(changes), rng)
        return text

    return mutate


def _apply(text: bytes, change: _Change, rng: random.Random) -> bytes:
    """Change one part. A result that is too long, or nested too deeply for orjson, is dropped."""
    holder = {"": orjson.loads(text)}
    change(*rng.choice(_places(holder)), rng)
    try:
        changed = orjson.dumps(holder[""]) if "" in holder else text
        orjson.loads(changed)
    except (TypeError, ValueError):
        return text
    return changed if len(changed) <= MAX_BYTES else text


def _places(holder: dict[str, Any]) -> list[_Place]:
    """Return where every part of the value is."""
    found: list[_Place] = [(holder, "")]
    for container, key in found:
        part = container[key]
        if isinstance(part, dict):
            found += [(part, name) for name in part]
        elif isinstance(part, list):
            found += [(part, i) for i in range(len(part))]
    return found


def _replace(container: Any, key: Any, rng: random.Random) -> None:
    container[key] = rng.choice(EDGES)


def _remove(container: Any, key: Any, _: random.Random) -> None:
    del container[key]


def _grafter(texts: Sequence[bytes]) -> _Change:
    def graft(container: Any, key: Any, rng: random.Random) -> None:
        source, name = rng.choice(_places({"": orjson.loads(rng.choice(texts))}))
        container[key] = source[name]

    return graft


def _renamer(names: Sequence[str]) -> _Change:
    def rename(container: Any, key: Any, rng: random.Random) -> None:
        if isinstance(container, dict):
            container[rng.choice(names)] = container.pop(key)

    return rename


def _adder(names: Sequence[str]) -> _Change:
    def add(container: Any, key: Any, rng: random.Random) -> None:
        part = container[key]
        if isinstance(part, dict):
            part[rng.choice(names)] = rng.choice(EDGES)
        elif isinstance(part, list):
            part.append(rng.choice(EDGES))

    return add


def _wrapper(names: Sequence[str]) -> _Change:
    def wrap(container: Any, key: Any, rng: random.Random) -> None:
        name = rng.choice([None, rng.choice(names)])
        for _ in range(rng.choice(_TIMES)):
            container[key] = [container[key]] if name is None else {name: container[key]}

    return wrap
