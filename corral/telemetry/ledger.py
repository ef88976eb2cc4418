"""The ledger: requests, tokens and seconds of every key and day, kept across restarts with `--ledger`.

A `RecordObserver` on the event loop. A thread brings changes to disk within a second; a disk that cannot be
written costs a warning, and the numbers stay in memory.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging
import time
from pathlib import Path

import msgspec

from corral.core.client import Client
from corral.core.database import Database
from corral.core.errors import CorralError
from corral.core.result import TaskResult
from corral.telemetry.record import RequestRecord, TaskRecord
from corral.telemetry.usage import usage_of

DAY_S = 86400
_FLUSH_S = 1.0
_MINUTE_S = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER, key TEXT, entry BLOB, PRIMARY KEY (day, key)) WITHOUT ROWID;
"""
_log = logging.getLogger("corral")

Place = tuple[int, str]  # the day, counted from 1970 in UTC, and the id of a client


class DayUsage(msgspec.Struct, kw_only=True):
    """Mutable: what a key used on a day. `seconds`: in slots. `cached`: of the `input` tokens."""

    name: str = ""
    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    seconds: float = 0.0
    refused: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.output


class Ledger:
    """Mutable."""

    def __init__(self) -> None:
        self._entries: dict[Place, DayUsage] = {}
        self._recent: dict[str, collections.deque[tuple[float, int]]] = {}
        self._db: Database | None = None
        self._disk = concurrent.futures.ThreadPoolExecutor(1, "ledger")
        self._changed: set[Place] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False  # the last write failed

    def open(self, path: Path) -> None:
        """Keep the numbers in a file. Raises CorralError if it cannot be used."""
        self._db = Database(path, _SCHEMA, "--ledger")
        for day, key, entry in self._db.read("SELECT day, key, entry FROM usage"):
            self._entries[day, key] = msgspec.json.decode(entry, type=DayUsage)

    def entries(self, first_day: int) -> dict[Place, DayUsage]:
        """Return the entries of this day and all later ones."""
        return {place: entry for place, entry in self._entries.items() if place[0] >= first_day}

    def today(self, client: Client) -> DayUsage:
        return self._entries.get((_day(), client.id)) or DayUsage(name=client.name)

    def used_in_minute(self, client: Client) -> tuple[int, float]:
        """Return the tokens of the last minute, and the seconds until the oldest of them do not count."""
        recent = self._recent.get(client.id)
        now = time.monotonic()
        while recent and recent[0][0] <= now - _MINUTE_S:
            recent.popleft()
        if not recent:
            return 0, 0.0
        return sum(n for _, n in recent), recent[0][0] + _MINUTE_S - now

    def on_result(self, record: RequestRecord, task: TaskRecord, result: TaskResult) -> None: ...

    def on_end(self, record: RequestRecord, task: TaskRecord) -> None:
        """Add a task; the first one of a request counts as its request. The server's own work is left out."""
        if not record.id:
            return
        client, usage = record.client, usage_of([task])
        entry = self._entry(client)
        entry.requests += task is record.tasks[0]
        entry.input += usage.n_input
        entry.cached += usage.n_cached
        entry.output += usage.n_output
        entry.seconds += task.service_s if task.admitted_at else 0.0
        n = usage.n_input + usage.n_output
        if client.limits.tokens_per_minute and n:
            recent = self._recent.setdefault(client.id, collections.deque())
            recent.append((time.monotonic(), n))

    def on_refused(self, client: Client) -> None:
        self._entry(client).refused += 1

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._db is not None and self._changed:
            await self._flush()
        await asyncio.to_thread(self._disk.shutdown)
        if self._db is not None:
            self._db.close()

    def _entry(self, client: Client) -> DayUsage:
        """Return the entry of a client, which is about to change."""
        place = (_day(), client.id)
        entry = self._entries.setdefault(place, DayUsage(name=client.name))
        entry.name = client.name
        self._changed.add(place)
        if self._db is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_S, lambda: loop.create_task(self._flush()))
        return entry

    async def _flush(self) -> None:
        self._timer = None
        changed, self._changed = self._changed, set()
        rows = [(*place, msgspec.json.encode(self._entries[place])) for place in changed]
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, self._write, rows)
            self._is_lost = False
        except CorralError as error:
            self._changed |= changed
            if not self._is_lost:
                _log.warning("usage is kept in memory only: %s", error.message)
            self._is_lost = True

    def _write(self, rows: list[tuple[int, str, bytes]]) -> None:
        assert self._db is not None
        with self._db.write() as db:
            db.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?)", rows)


def _day() -> int:
    return int(time.time()) // DAY_S
