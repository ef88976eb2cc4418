"""The ledger: requests, tokens and seconds of every key and day, kept across restarts with `--ledger`.

A `RecordObserver` on the event loop. A thread adds changes to the file within a second, and other servers may
add theirs; a disk that cannot be written costs a warning, and the numbers stay in memory.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

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
Entries: TypeAlias = "dict[Place, DayUsage]"


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

    def add(self, more: DayUsage) -> DayUsage:
        self.name = more.name
        for field in self.__struct_fields__[1:]:
            setattr(self, field, getattr(self, field) + getattr(more, field))
        return self


class Ledger:
    """Mutable."""

    def __init__(self) -> None:
        self._entries: dict[Place, DayUsage] = {}
        self._recent: dict[str, collections.deque[tuple[float, int]]] = {}
        self._db: Database | None = None
        self._is_shared = False
        self._disk = concurrent.futures.ThreadPoolExecutor(1, "ledger")
        self._unsaved: dict[Place, DayUsage] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False  # the last write failed

    def open(self, path: Path, is_shared: bool = False) -> None:
        """Keep the numbers in a file. Raises CorralError if it cannot be used."""
        self._db = Database(path, _SCHEMA, "--ledger", is_shared)
        self._is_shared = is_shared
        self._entries = self._read(0)

    async def refresh(self, first_day: int) -> None:
        """See what other servers have added, of this day and all later ones."""
        if self._is_shared:
            with contextlib.suppress(CorralError):
                self._merge(await self._on_disk(self._read, first_day))

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
        more = DayUsage(
            name=client.name,
            requests=int(task is record.tasks[0]),
            input=usage.n_input,
            cached=usage.n_cached,
            output=usage.n_output,
            seconds=task.service_s if task.admitted_at else 0.0,
        )
        self._add(client, more)
        n = usage.n_input + usage.n_output
        if client.limits.tokens_per_minute and n:
            recent = self._recent.setdefault(client.id, collections.deque())
            recent.append((time.monotonic(), n))

    def on_refused(self, client: Client) -> None:
        self._add(client, DayUsage(name=client.name, refused=1))

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._db is not None and self._unsaved:
            await self._flush()
        await asyncio.to_thread(self._disk.shutdown)
        if self._db is not None:
            self._db.close()

    def _add(self, client: Client, more: DayUsage) -> None:
        place = (_day(), client.id)
        self._entries.setdefault(place, DayUsage()).add(more)
        if self._db is None:
            return
        self._unsaved.setdefault(place, DayUsage()).add(more)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_S, lambda: loop.create_task(self._flush()))

    async def _flush(self) -> None:
        self._timer = None
        writing, self._unsaved = self._unsaved, {}
        try:
            self._merge(await self._on_disk(self._write, writing))
            self._is_lost = False
        except Exception as error:  # whatever it is, nothing may be lost
            for place, more in writing.items():
                self._unsaved[place] = more.add(self._unsaved.get(place, DayUsage(name=more.name)))
            if not self._is_lost:
                _log.warning("usage is kept in memory only: %s", error)
            self._is_lost = True

    def _merge(self, saved: Entries) -> None:
        """Take over what the file says, with what it does not have yet."""
        for place, entry in saved.items():
            more = self._unsaved.get(place)
            self._entries[place] = entry.add(more) if more is not None else entry

    def _read(self, first_day: int) -> Entries:
        assert self._db is not None
        rows = self._db.read("SELECT day, key, entry FROM usage WHERE day >= ?", first_day)
        return {(day, key): msgspec.json.decode(entry, type=DayUsage) for day, key, entry in rows}

    def _write(self, unsaved: Entries) -> Entries:
        """Add to what the file has, and return that."""
        assert self._db is not None
        totals: Entries = {}
        with self._db.write() as db:
            for place, more in unsaved.items():
                row = db.execute("SELECT entry FROM usage WHERE day = ? AND key = ?", place).fetchone()
                entry = msgspec.json.decode(row[0], type=DayUsage) if row is not None else DayUsage()
                totals[place] = entry.add(more)
            rows = [(*place, msgspec.json.encode(entry)) for place, entry in totals.items()]
            db.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?)", rows)
        return totals

    async def _on_disk(self, work: Callable[..., Entries], *args: object) -> Entries:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *args)


def _day() -> int:
    return int(time.time()) // DAY_S
