"""Work that is repeated whatever it raises."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from corral.core.errors import CorralError
from corral.core.repeat import repeat
from tests.tools.wait import wait_until_async


@pytest.mark.parametrize(
    "error", [CorralError("no room"), OSError(24, "Too many open files"), ValueError("odd")]
)
async def test_no_error_ends_it_and_the_first_in_a_row_is_logged(caplog, error):
    outcomes = [None, error, error, None, error]
    n_done = 0

    async def work() -> None:
        nonlocal n_done
        n_done += 1
        if n_done <= len(outcomes) and outcomes[n_done - 1] is not None:
            raise error

    with caplog.at_level(logging.WARNING, "corral"):
        task = asyncio.create_task(repeat("sweeping", work, 0.001))
        await wait_until_async(lambda: n_done > len(outcomes) + 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert len(caplog.records) == 2
    assert all("sweeping failed" in message for message in caplog.messages)
    is_known = isinstance(error, CorralError | OSError)
    assert [record.exc_info is None for record in caplog.records] == [is_known] * 2
