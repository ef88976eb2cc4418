"""Media on their way to engines that come and go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from corral.core.errors import InvalidRequest, Unavailable
from corral.core.media_item import MediaItem, MediaKind
from corral.core.params import GenerationParams
from corral.core.result import Failed, MediaLayout
from corral.core.settings import EngineSettings
from corral.core.task import LayoutMedia, Task
from corral.link import client
from corral.link.client import EngineClient
from corral.link.engine_state import EngineState
from corral.link.pending_task import MAX_CRASHES
from tests.unit.fake import FakeBackend
from tests.unit.fake_process import NullObserver, submit_task

PICTURE = MediaItem(kind=MediaKind.IMAGE, width=1, height=1, digest=b"picture", n_runs=1)
PARAMS = GenerationParams()


@dataclass
class Process:
    """Takes orders, or is gone, or has no room for descriptors."""

    error: OSError | None = None
    commands: list = field(default_factory=list)

    def send(self, command, fd: int = -1) -> None:
        if self.error is not None and fd >= 0:
            raise self.error
        self.commands.append((command, fd))


@dataclass
class File:
    media: list = field(default_factory=lambda: [[PICTURE]])
    fd: int = 99


def opened(process: Any) -> Any:
    one = EngineClient(EngineSettings(model="fake"), 10.0, NullObserver())
    one.lifecycle.state, one.lifecycle.process = EngineState.READY, process
    return one


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
async def test_a_task_whose_engine_is_gone_goes_to_the_next_one(error):
    one = opened(Process(error))
    task, _ = submit_task(one, [1, -2], File())
    following = one.lifecycle.process = Process()
    one.on_ready(FakeBackend().info())
    ((sent, fd),) = [command for command in following.commands if isinstance(command[0], Task)]
    assert (sent.id, sent.media, fd) == (task.id, [PICTURE], 99)


async def test_where_there_is_no_room_the_client_is_told():
    one = opened(Process(BlockingIOError()))
    with pytest.raises(Unavailable):
        submit_task(one, [1, -2], File())
    assert not one._pending
    one.lifecycle.process.error = None
    _, stream = submit_task(one, [1, -2], File())
    one.lifecycle.process = Process(BlockingIOError())
    one.on_ready(FakeBackend().info())
    with pytest.raises(Unavailable):
        await anext(aiter(stream))


async def test_media_are_arranged_by_the_next_engine_if_one_is_lost(monkeypatch):
    monkeypatch.setattr(client, "READY_S", 0)
    one = opened(Process())
    arranging = asyncio.create_task(one.layout_media([PICTURE]))
    await asyncio.sleep(0)
    one.lifecycle.state = EngineState.RESTARTING
    one.on_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not arranging.done()
    one.lifecycle.process = Process()
    one.lifecycle.state = EngineState.READY
    while not one.lifecycle.process.commands:
        await asyncio.sleep(0)
    command = one.lifecycle.process.commands[-1][0]
    assert (type(command), command.media) == (LayoutMedia, [PICTURE])
    one.on_event(MediaLayout(command.id, [[-5]]))
    assert await arranging == [[-5]]


async def test_what_cannot_be_arranged_is_not_tried_again():
    one = opened(Process())
    arranging = asyncio.create_task(one.layout_media([PICTURE]))
    await asyncio.sleep(0)
    one.on_event(Failed(one.lifecycle.process.commands[-1][0].id, InvalidRequest("image 1: no").info()))
    with pytest.raises(Exception, match="image 1: no"):
        await arranging
    assert sum(isinstance(command, LayoutMedia) for command, _ in one.lifecycle.process.commands) == 1


async def test_media_that_take_three_engines_down_are_given_up(monkeypatch):
    monkeypatch.setattr(client, "READY_S", 0)
    one = opened(Process())
    arranging = asyncio.create_task(one.layout_media([PICTURE]))
    for _ in range(MAX_CRASHES):
        while not one._answers:
            await asyncio.sleep(0)
        one.on_lost(None)
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await arranging
