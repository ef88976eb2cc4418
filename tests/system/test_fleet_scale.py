"""Engines start while requests wait, and end when they are not needed."""

from __future__ import annotations

from tests.system.fleet_scale import LOADED, OPTIONS, SCALE, grow_and_shrink, shrink_while_streaming
from tests.system.process import CorralProcess


async def test_a_fleet_grows_from_none_and_shrinks_again(tiny):
    with CorralProcess("-m", tiny, *OPTIONS, *SCALE) as server:
        await grow_and_shrink(server, lambda: len(server.engines))


async def test_streams_go_on_when_an_engine_comes_or_ends(tiny):
    with CorralProcess("-m", tiny, *LOADED, *SCALE) as server:
        await shrink_while_streaming(server, lambda: len(server.engines))
