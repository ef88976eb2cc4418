"""The memory that media of all requests take together."""

from __future__ import annotations

import asyncio

import pytest

from corral.media import budget
from corral.media.budget import MediaBudget
from corral.storage.blob import Blob
from tests.tools.wait import let_tasks_run


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(budget, "_POLL_S", 0.0)


def blob(n: int) -> Blob:
    made = Blob.create("test")
    made.write(bytes(n))
    return made


async def test_files_wait_for_room_until_others_are_closed():
    room = MediaBudget(100)
    first = blob(80)
    await room.hold(first)
    await room.hold(blob(20))  # gone at once
    second = blob(50)
    waiting = asyncio.create_task(room.hold(second))
    await let_tasks_run()
    assert not waiting.done()
    del first
    await asyncio.wait_for(waiting, 20)


async def test_there_is_room_for_one_of_any_size():
    room = MediaBudget(100)
    first = blob(500)
    await room.hold(first)
    waiting = asyncio.create_task(room.hold(blob(1)))
    await let_tasks_run()
    assert not waiting.done()
    del first
    await asyncio.wait_for(waiting, 20)


async def test_who_leaves_while_waiting_takes_no_room():
    room = MediaBudget(100)
    first, second = blob(80), blob(80)
    await room.hold(first)
    waiting = asyncio.create_task(room.hold(second))
    await let_tasks_run()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    del first
    third = blob(100)
    await asyncio.wait_for(room.hold(third), 20)
