"""Work that a server does again and again as long as it runs, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from corral.core.errors import CorralError

_log = logging.getLogger("corral")


async def repeat(what: str, work: Callable[[], Awaitable[object]], pause_s: float) -> NoReturn:
    """Do the work, with a pause after each time. The first of several failures in a row is logged."""
    is_failing = False
    while True:
        try:
            await work()
            is_failing = False
        except Exception as error:
            if not is_failing:
                is_known = isinstance(error, CorralError | OSError)
                fields = {"what": what, "error": error, "seconds": pause_s}
                message = "%(what)s failed: %(error)s; tried again every %(seconds)g s"
                _log.warning(message, fields, exc_info=None if is_known else error)
            is_failing = True
        await asyncio.sleep(pause_s)
