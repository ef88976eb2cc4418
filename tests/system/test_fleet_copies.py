"""A state is copied between engines of this machine."""

from __future__ import annotations

from tests.system.fleet_copies import OPTIONS, copy_from_a_busy_engine
from tests.system.process import CorralProcess


async def test_a_state_is_copied_from_a_busy_engine():
    with CorralProcess(*OPTIONS) as server:
        await copy_from_a_busy_engine(server)
