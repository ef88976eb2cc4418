"""Several result streams as one, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from corral.core.result import TaskResult
from corral.link.stream import TaskStream


async def merge(streams: Sequence[TaskStream]) -> AsyncIterator[tuple[int, TaskResult]]:
    """(index of the stream, result) until all have ended or one fails. Leaving closes them all."""
    arrived: asyncio.Queue[tuple[int, TaskResult | BaseException | None]] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, stream, arrived)) for i, stream in enumerate(streams)]
    try:
        n_open = len(streams)
        while n_open:
            index, result = await arrived.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                n_open -= 1
            else:
                yield index, result
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for stream in streams:
            stream.close()


async def _pump(
    index: int, stream: TaskStream, arrived: asyncio.Queue[tuple[int, TaskResult | BaseException | None]]
) -> None:
    try:
        async for result in stream:
            arrived.put_nowait((index, result))
        arrived.put_nowait((index, None))
    except Exception as error:
        arrived.put_nowait((index, error))
