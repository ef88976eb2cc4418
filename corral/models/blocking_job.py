"""Run a long blocking function before the engine starts, in a thread that shutdown does not wait for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from corral.core.result import Loading

T = TypeVar("T")
ReportProgress = Callable[[Loading], None]  # reports progress; raises KeyboardInterrupt to stop the function

_GRACE_S = 2.0


class BlockingJob(Generic[T]):
    """A blocking function in a daemon thread. The function calls `report` now and then."""

    def __init__(self, function: Callable[[ReportProgress], T], report: ReportProgress) -> None:
        self._function = function
        self._report_progress = report
        self._is_over = False
        self._done: concurrent.futures.Future[T] = concurrent.futures.Future()

    async def run(self) -> T:
        threading.Thread(target=self._run, daemon=True).start()
        future = asyncio.wrap_future(self._done)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._is_over = True
            await asyncio.wait({future}, timeout=_GRACE_S)
            raise

    def _run(self) -> None:
        try:
            self._done.set_result(self._function(self._report))
        except KeyboardInterrupt:
            self._done.cancel()
        except BaseException as error:
            self._done.set_exception(error)

    def _report(self, loading: Loading) -> None:
        if self._is_over:
            raise KeyboardInterrupt
        self._report_progress(loading)
