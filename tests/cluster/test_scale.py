"""Engines of a cluster start while requests wait, and end when idle: their CPUs are free for others."""

from __future__ import annotations

from tests.system.fleet_scale import LOADED, OPTIONS, SCALE, grow_and_shrink, shrink_while_streaming
from tests.system.process import CorralProcess
from tests.tools.wait import wait_until


async def test_a_fleet_grows_from_none_and_shrinks_again(nodes, tiny):
    with CorralProcess("-m", tiny, "--ray", nodes.address, *OPTIONS, *SCALE) as server:
        await grow_and_shrink(server, lambda: len(nodes.engines))
    wait_until(lambda: not nodes.engines, 0.1)


async def test_streams_go_on_when_an_engine_comes_or_ends(nodes, tiny):
    with CorralProcess("-m", tiny, "--ray", nodes.address, *LOADED, *SCALE) as server:
        await shrink_while_streaming(server, lambda: len(nodes.engines))
    wait_until(lambda: not nodes.engines, 0.1)
