"""The model file of engines of a cluster is replaced as on one machine."""

from __future__ import annotations

import pytest

from tests.system import fleet_update
from tests.system.process import CorralProcess
from tests.tools.wait import wait_until


@pytest.fixture(autouse=True)
def no_engines_afterwards(nodes):
    yield
    wait_until(lambda: not nodes.engines, 0.1)


async def test_streams_end_with_the_file_they_began_with(nodes, tiny, tmp_path):
    model = fleet_update.write_models(tiny, tmp_path)
    with CorralProcess("-m", model, "--ray", nodes.address, *fleet_update.OPTIONS) as server:
        await fleet_update.update_while_streaming(server)
