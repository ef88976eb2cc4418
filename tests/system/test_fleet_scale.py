"""Engines start while requests wait, and end when idle."""

from __future__ import annotations

from tests.system.fleet_scale import OPTIONS, SCALE, grow_and_shrink
from tests.system.process import CorralProcess


async def test_a_fleet_grows_from_none_and_shrinks_again(tiny):
    with CorralProcess("-m", tiny, *OPTIONS, *SCALE) as server:
        await grow_and_shrink(server, lambda: len(server.engines))
