"""What blocks before an engine can start, and is left alone when the server stops."""

from __future__ import annotations

import asyncio
import threading

import pytest

from corral.core.errors import CorralError
from corral.core.result import Loading, Stage
from corral.models.blocking_job import BlockingJob

HALF = Loading(Stage.DOWNLOADING, 0.5)


async def test_it_has_a_result_and_tells_how_far_it_is():
    told = []

    def work(tell):
        tell(HALF)
        return "found"

    assert await BlockingJob(work, told.append).run() == "found"
    assert told == [HALF]


async def test_what_goes_wrong_is_raised():
    def work(_tell):
        raise CorralError("no such host")

    with pytest.raises(CorralError, match="no such host"):
        await BlockingJob(work, lambda _: None).run()


async def test_one_that_is_cancelled_ends_when_it_next_tells_something():
    is_running, may_go_on, ended = threading.Event(), threading.Event(), []

    def work(tell):
        is_running.set()
        may_go_on.wait()
        try:
            tell(HALF)
        except KeyboardInterrupt:
            ended.append(True)
            raise

    told = []
    task = asyncio.create_task(BlockingJob(work, told.append).run())
    await asyncio.to_thread(is_running.wait)
    task.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ended, told) == ([True], [])


async def test_one_that_hangs_holds_nothing_up(monkeypatch):
    monkeypatch.setattr("corral.models.blocking_job._GRACE_S", 0.01)
    is_running, is_over = threading.Event(), threading.Event()

    def work(_tell):
        is_running.set()
        is_over.wait()

    task = asyncio.create_task(BlockingJob(work, lambda _: None).run())
    await asyncio.to_thread(is_running.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    is_over.set()
