"""Cancel work when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Receive

from corral.generate.background import cancel

T = TypeVar("T")


class ClientGone(Exception):
    """The client disconnected before its response was ready."""


async def run_for_client(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Await `work`; cancel it and raise ClientGone if the client disconnects first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await cancel(task, gone)


async def receive_nothing() -> Message:
    """The client of this request never leaves."""
    await asyncio.Event().wait()
    raise AssertionError


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
