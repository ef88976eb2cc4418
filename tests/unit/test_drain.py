"""Who is told of the end: also those who come when it has begun."""

from __future__ import annotations

from uvicorn.server import ServerState

from corral.server.drain import Drain


def test_whoever_has_joined_is_told():
    told: list[str] = []
    drain = Drain(1.0, lambda: told.append("dismissed"))
    drain.join(lambda: told.append("first"), lambda: told.append("second"))
    assert told == []
    drain.begin()
    assert told == ["first", "second"]


def test_whoever_joins_late_is_told_at_once():
    told: list[str] = []
    drain = Drain(1.0, lambda: None)
    drain.begin()
    drain.join(lambda: told.append("late"))
    assert told == ["late"]


async def test_nobody_waits_for_the_end_who_was_not_told():
    """It comes without a signal too, where something has failed."""
    told: list[str] = []
    drain = Drain(600.0, lambda: told.append("dismissed"))
    drain.join(lambda: told.append("joined"))
    drain.hurry()
    await drain.run(ServerState())
    assert told == ["joined", "dismissed"]
