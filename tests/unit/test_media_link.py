"""Media on their way to engines that come and go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from corral.core.errors import InvalidRequest, Unavailable
from corral.core.medium import MediaKind, Medium
from corral.core.params import GenerationParams
from corral.core.result import Arranged, Failed
from corral.core.settings import EngineSettings
from corral.core.task import Arrange, Task
from corral.link import supervisor
from corral.link.supervisor import EngineState, Supervisor
from tests.unit.fake import FakeBackend

PICTURE = Medium(kind=MediaKind.IMAGE, width=1, height=1, digest=b"picture", n_runs=1)
PARAMS = GenerationParams()


@dataclass
class Process:
    """Takes orders, or is gone, or has no room for descriptors."""

    error: OSError | None = None
    orders: list = field(default_factory=list)

    def send(self, order, fd: int = -1) -> None:
        if self.error is not None and fd >= 0:
            raise self.error
        self.orders.append((order, fd))


@dataclass
class File:
    media: list = field(default_factory=lambda: [[PICTURE]])
    fd: int = 99


def opened(process: Process) -> Supervisor:
    one = Supervisor(EngineSettings(model="fake"), 10.0)
    one.state, one._process = EngineState.READY, process
    return one


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
async def test_a_task_whose_engine_is_gone_goes_to_the_next_one(error):
    one = opened(Process(error))
    task, _ = one.submit([1, -2], PARAMS, File())
    following = Process()
    one._on_ready(FakeBackend().info(), following)
    ((sent, fd),) = [order for order in following.orders if isinstance(order[0], Task)]
    assert (sent.id, sent.media, fd) == (task.id, [PICTURE], 99)


async def test_where_there_is_no_room_the_client_is_told():
    one = opened(Process(BlockingIOError()))
    with pytest.raises(Unavailable):
        one.submit([1, -2], PARAMS, File())
    assert not one._entries
    one._process.error = None
    _, stream = one.submit([1, -2], PARAMS, File())
    one._on_ready(FakeBackend().info(), Process(BlockingIOError()))
    with pytest.raises(Unavailable):
        await anext(aiter(stream))


async def test_media_are_arranged_by_the_next_engine_if_one_is_lost(monkeypatch):
    monkeypatch.setattr(supervisor, "READY_S", 0)
    one = opened(Process())
    arranging = asyncio.create_task(one.arrange([PICTURE]))
    await asyncio.sleep(0)
    one.state = EngineState.RESTARTING
    one._fail_answers()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not arranging.done()
    one._process = Process()
    one.state = EngineState.READY
    while not one._process.orders:
        await asyncio.sleep(0)
    order = one._process.orders[-1][0]
    assert (type(order), order.media) == (Arrange, [PICTURE])
    one._handle(Arranged(order.id, [[-5]]), one._process)
    assert await arranging == [[-5]]


async def test_what_cannot_be_arranged_is_not_tried_again():
    one = opened(Process())
    arranging = asyncio.create_task(one.arrange([PICTURE]))
    await asyncio.sleep(0)
    one._handle(Failed(one._process.orders[-1][0].id, InvalidRequest("image 1: no").info()), one._process)
    with pytest.raises(Exception, match="image 1: no"):
        await arranging
    assert sum(isinstance(order, Arrange) for order, _ in one._process.orders) == 1


async def test_media_that_take_three_engines_down_are_given_up(monkeypatch):
    monkeypatch.setattr(supervisor, "READY_S", 0)
    one = opened(Process())
    arranging = asyncio.create_task(one.arrange([PICTURE]))
    for _ in range(supervisor.MAX_LOSSES):
        while not one._answers:
            await asyncio.sleep(0)
        one._fail_answers()
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await arranging
