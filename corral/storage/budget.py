"""Who makes room when clients hold too much together."""

from __future__ import annotations

from collections.abc import Container, Mapping


def who_makes_room(held: Mapping[str, int], limit: int, able: Container[str] | None = None) -> str | None:
    """Return the client that holds most, and more than an equal share of the limit; None: there is room.

    `able`: the clients that have something to give; None: all.
    """
    if sum(held.values()) <= limit:
        return None
    greedy = [id for id, n in held.items() if n * len(held) > limit and (able is None or id in able)]
    return max(greedy, key=held.__getitem__, default=None)
