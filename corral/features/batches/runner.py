"""Run batches: each line as a request that yields to all others, a key's batches one after the other.

What has ended is on disk before it counts, so that a server that is killed continues after it. For one event
loop; the disk has a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from corral.api.internal import Ask, RunAsk
from corral.core.errors import InsufficientStorage, NotFound
from corral.core.repeat import repeat
from corral.features.batches.line import Checked, Line, check_lines, parse_line, read_line
from corral.features.batches.result_line import LineAnswer, render_result, render_unrun
from corral.generate.background import Background, cancel
from corral.generate.caller import Caller
from corral.storage.batch_record import BatchRecord, Counts, FileRecord, Outcome, Result, new_id
from corral.storage.batch_store import BatchStore
from corral.telemetry.record import RequestRecord

T = TypeVar("T")

_UNAVAILABLE = (503, 529)
_LIMITED = 429
_MAX_TRIES = 5  # of a line that a server refuses which is ready
_RETRY_S = 1.0
_FULL_S = 5.0  # between two attempts to write to a disk that is full
_SWEEP_S = 600.0
_AHEAD = 2  # lines in the queue besides those in slots
_log = logging.getLogger("corral")


class BatchRunner:
    """Mutable: the batches that have not ended."""

    def __init__(
        self,
        store: BatchStore,
        is_ready: Callable[[], bool],
        n_parallel: Callable[[], int],
        has_many_models: bool = False,
    ) -> None:
        """`is_ready`: whether the server can run requests. `n_parallel`: how many at once. `has_many_models`:
        lines may name different ones."""
        self._store = store
        self._is_ready = is_ready
        self._n_parallel = n_parallel
        self._disk = ThreadPoolExecutor(1, "batches")
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._runs: dict[str, _Run] = {}
        self._background = Background()
        self._run_ask: RunAsk | None = None
        self._has_many_models = has_many_models

    def start(self, run_ask: RunAsk) -> None:
        """Continue what an earlier server has left; `run_ask` runs the lines."""
        self._run_ask = run_ask
        if not self._store.is_shared:  # otherwise one that is ready does it (`features/shared/sharing.py`)
            self._background.spawn(self.take_over())
        self._background.spawn(self._sweep())

    def add(self, batch: BatchRecord) -> None:
        run = self._runs[batch.id] = _Run(batch)
        self._background.spawn(self._supervise(run))

    async def submit(self, batch: BatchRecord) -> None:
        """Save a new batch, and run it."""
        await self.on_disk(self._store.save_batch, batch)
        self.add(batch)

    def find(self, owner: str, id: str) -> BatchRecord | None:
        """Return a batch of this key that has not ended."""
        run = self._runs.get(id)
        return run.batch if run is not None and run.batch.client.id == owner else None

    async def load(self, owner: str, id: str) -> BatchRecord:
        """Return a batch of this key; it is a running one's own record. Raises NotFound."""
        running = self.find(owner, id)
        return await self.on_disk(self._store.find_batch, owner, id) if running is None else running

    async def progress(self, batch: BatchRecord) -> tuple[BatchRecord, Counts]:
        """Return a batch as it is now, and how many of its lines have ended how."""
        counts = await self.on_disk(self._store.counts, batch.id)
        return self.find(batch.client.id, batch.id) or batch, counts

    async def is_unfinished(self, owner: str, id: str) -> bool:
        """Whether a batch of this key has not ended, whichever server runs it."""
        try:
            return not (await self.on_disk(self._store.find_batch, owner, id)).is_ended
        except NotFound:
            return False

    def eta_s(self, id: str) -> int | None:
        """Return the expected time until a batch ends, from its lines so far."""
        run = self._runs.get(id)
        return run.eta_s if run is not None else None

    async def cancel(self, batch: BatchRecord) -> None:
        """Stop a batch; its results so far stay."""
        run = self._runs.get(batch.id)
        if run is not None and run.batch.status in ("validating", "in_progress"):
            run.batch.enter("cancelling", _now())
            await self.on_disk(self._store.save_batch, run.batch)
            run.stop.set()

    async def on_disk(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *args)

    async def close(self) -> None:
        """Stop all work; it continues with the next server."""
        await self._background.close()
        await asyncio.to_thread(self._disk.shutdown)
        self._store.close()

    async def take_over(self) -> None:
        """Continue the batches of servers that are gone."""
        for batch in await self.on_disk(self._store.claim):
            if batch.id not in self._runs:
                self.add(batch)

    async def _sweep(self) -> None:
        await repeat("removing old batches", lambda: self.on_disk(self._store.sweep), _SWEEP_S)

    async def _supervise(self, run: _Run) -> None:
        batch = run.batch
        try:
            checked = await asyncio.to_thread(
                check_lines,
                self._store.path_of(batch.input_file_id),
                batch.endpoint,
                self._has_many_models,
            )
            if checked.errors and not batch.total:
                await self._refuse(batch, checked)
            else:
                await self._run(run, checked)
        except OSError as error:
            about = {"code": "invalid_file", "message": f"the file cannot be read: {error.strerror}"}
            await self._refuse(batch, Checked([], [{**about, "param": None, "line": None}], None))
        except Exception:
            _log.exception("batch %s: unexpected error; it continues after a restart", batch.id)
        finally:
            self._runs.pop(batch.id, None)

    async def _refuse(self, batch: BatchRecord, checked: Checked) -> None:
        batch.errors = checked.errors
        batch.enter("failed", _now())
        await self._write(self._store.save_batch, batch)

    async def _run(self, run: _Run, checked: Checked) -> None:
        batch = run.batch
        batch.total, batch.model = len(checked.lines), checked.model
        if batch.status == "validating":
            batch.enter("in_progress", _now())
            await self._write(self._store.save_batch, batch)
        done = await self.on_disk(self._store.done_lines, batch.id)
        run.left = [line for line in checked.lines if line.number not in done]
        if batch.status == "in_progress":
            status, outcome = await self._run_lines(run)
        else:
            status, outcome = "cancelled", Outcome.CANCELED
        done = await self.on_disk(self._store.done_lines, batch.id)
        unrun = [line for line in checked.lines if line.number not in done]
        await self._end(batch, status, [render_unrun(batch.endpoint, line, outcome) for line in unrun])

    async def _run_lines(self, run: _Run) -> tuple[str, Outcome]:
        """Run lines until all are done, the batch is cancelled, or its time is over."""
        working, stopped = asyncio.ensure_future(self._work(run)), asyncio.ensure_future(run.stop.wait())
        try:
            left_s = max(0.0, run.batch.expires_at - time.time())
            await asyncio.wait({working, stopped}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return "completed", Outcome.ERROR
            return ("cancelled", Outcome.CANCELED) if run.stop.is_set() else ("expired", Outcome.EXPIRED)
        finally:
            await cancel(working, stopped)

    async def _work(self, run: _Run) -> None:
        async with self._lanes[run.batch.client.id]:
            run.began_at = time.monotonic()
            lines = iter(list(run.left))
            n = self._n_parallel() + _AHEAD
            workers = [asyncio.ensure_future(self._work_on(run, lines)) for _ in range(n)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()

    async def _work_on(self, run: _Run, lines: Iterator[Line]) -> None:
        batch = run.batch
        path = self._store.path_of(batch.input_file_id)
        for line in lines:
            text = await self.on_disk(read_line, path, line)
            answer = await self._answer(batch, parse_line(text)[1])
            await self._write(
                self._store.add_results, batch.id, [render_result(batch.endpoint, line, answer)]
            )
            run.n_done += 1

    async def _answer(self, batch: BatchRecord, body: bytes) -> LineAnswer:
        """Run a line, again if the server could not."""
        assert self._run_ask is not None
        n_tries = 0
        while True:
            while not self._is_ready():
                await asyncio.sleep(_RETRY_S)
            record = RequestRecord(new_id(""), replace(batch.client, is_batch=True))
            answer = LineAnswer(record)
            await self._run_ask(Ask(Caller(record), batch.endpoint, body), answer.send)
            n_tries += self._is_ready() and answer.status in _UNAVAILABLE
            if answer.status not in (*_UNAVAILABLE, _LIMITED) or n_tries >= _MAX_TRIES:
                return answer
            await asyncio.sleep(_RETRY_S)

    async def _end(self, batch: BatchRecord, status: str, unrun: list[Result]) -> None:
        if batch.status == "in_progress" and status == "completed":
            batch.enter("finalizing", _now())
        await self._write(self._store.add_results, batch.id, unrun)
        counts = await self.on_disk(self._store.counts, batch.id)
        files = []
        if counts.bytes_ok:
            files.append(_result_file(batch, counts.bytes_ok, is_output=True))
            batch.output_file_id = files[-1].id
        if counts.bytes_bad:
            files.append(_result_file(batch, counts.bytes_bad, is_output=False))
            batch.error_file_id = files[-1].id
        batch.enter(status, _now())
        await self._write(self._store.save_batch, batch, files)

    async def _write(self, write: Callable[..., None], *args: Any) -> None:
        """Write to disk; while it is full, wait for room."""
        while True:
            try:
                return await self.on_disk(write, *args)
            except InsufficientStorage as error:
                _log.error("batches wait: %s", error.message)
                await asyncio.sleep(_FULL_S)


class _Run:
    """Mutable: a batch that has not ended."""

    def __init__(self, batch: BatchRecord) -> None:
        self.batch = batch
        self.stop = asyncio.Event()
        self.left: list[Line] = []
        self.n_done = 0
        self.began_at = 0.0

    @property
    def eta_s(self) -> int | None:
        if not self.n_done:
            return None
        per_line = (time.monotonic() - self.began_at) / self.n_done
        return round(per_line * (len(self.left) - self.n_done))


def _result_file(batch: BatchRecord, n_bytes: int, is_output: bool) -> FileRecord:
    now = _now()
    kind = "output" if is_output else "error"
    return FileRecord(
        id=new_id("file-"),
        purpose="batch_output",
        filename=f"{batch.id}_{kind}.jsonl",
        n_bytes=n_bytes,
        created_at=now,
        expires_at=now + batch.output_expires_s if batch.output_expires_s else None,
        batch=batch.id,
        is_output=is_output,
    )


def _now() -> int:
    return int(time.time())
