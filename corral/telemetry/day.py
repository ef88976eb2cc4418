"""The last 24 hours of the server: minutes of each model, and hours of each model and key.

On the event loop. With `--monitor-history` a thread writes them to a file once a minute, which replaces the
last one atomically; a file that cannot be read or written costs a warning, never more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from corral.core.atomic_file import atomic_write
from corral.core.client import Client
from corral.core.result import TaskResult, Tokens
from corral.telemetry.period import Period
from corral.telemetry.record import RequestRecord, TaskRecord
from corral.telemetry.usage import usage_of

MINUTE_S, HOUR_S = 60, 3600
N_MINUTES, N_HOURS = 24 * 60, 24
MAX_SERIES = 1000  # of models, and of models and keys
MAX_BYTES = 256 << 20  # of a file that is read
_VERSION = 1
_log = logging.getLogger("corral")


class KeySeries(msgspec.Struct):
    """Mutable: what one key did with one model, by hour."""

    model: str
    key: str  # the id of the client
    name: str = ""
    hours: dict[int, Period] = {}


class _File(msgspec.Struct):
    version: int
    minutes: dict[str, dict[int, Period]]  # by model
    keys: list[KeySeries]


class DayHistory:
    """Mutable."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._minutes: dict[str, dict[int, Period]] = {}
        self._keys: dict[tuple[str, str], KeySeries] = {}
        self._path: Path | None = None
        self._disk: concurrent.futures.ThreadPoolExecutor | None = None
        self._written_at = 0  # minute
        self._writing: concurrent.futures.Future[None] | None = None
        self._is_lost = False

    @property
    def is_kept(self) -> bool:
        return self._path is not None

    def open(self, path: Path) -> None:
        """Keep the day in a file. One that cannot be used is replaced by a new one."""
        self._path = path
        try:
            found = _read(path)
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            _log.warning("--monitor-history: '%s' cannot be read, a new one is begun: %s", path, error)
            return
        self._minutes = found.minutes
        self._keys = {(each.model, each.key): each for each in found.keys}
        self._forget()

    def minutes(self, model: str) -> dict[int, Period]:
        """Return the minutes of a model in which anything happened, by number since 1970."""
        start = self._minute() - N_MINUTES
        return {at: period for at, period in self._minutes.get(model, {}).items() if at > start}

    @property
    def models(self) -> list[str]:
        return sorted(self._minutes)

    def series(self) -> list[KeySeries]:
        self._forget()
        return list(self._keys.values())

    def recorder(self, model: str) -> DayRecorder:
        return DayRecorder(self, model)

    def minute_of(self, model: str) -> Period:
        """Return the current minute. A model without a name is a server for many, which count for
        themselves."""
        if not model or (model not in self._minutes and len(self._minutes) >= MAX_SERIES):
            return Period()
        return _period(self._minutes.setdefault(model, {}), self._minute())

    def hour_of(self, model: str, client: Client) -> Period:
        place = (model, client.id)
        if not model or (place not in self._keys and len(self._keys) >= MAX_SERIES):
            return Period()
        series = self._keys.get(place) or self._keys.setdefault(place, KeySeries(*place))
        series.name = client.name
        return _period(series.hours, int(self._clock()) // HOUR_S)

    def tick(self) -> None:
        """Write the file if a minute has begun, unless the last write is still running."""
        minute = self._minute()
        if minute == self._written_at or self._path is None or (self._writing and not self._writing.done()):
            return
        self._written_at = minute
        self._start_writing(self._path)

    async def close(self) -> None:
        if self._path is not None and (self._minutes or self._keys):
            if self._writing is not None:
                await asyncio.wrap_future(self._writing)
            await asyncio.wrap_future(self._start_writing(self._path))
        if self._disk is not None:
            self._disk.shutdown()

    def _start_writing(self, path: Path) -> concurrent.futures.Future[None]:
        self._forget()
        content = msgspec.msgpack.encode(_File(_VERSION, self._minutes, list(self._keys.values())))
        self._disk = self._disk or concurrent.futures.ThreadPoolExecutor(1, "monitor")
        self._writing = self._disk.submit(self._write, path, content)
        return self._writing

    def _write(self, path: Path, content: bytes) -> None:
        try:
            with atomic_write(path, 0o600) as file:
                file.write(content)
            self._is_lost = False
        except OSError as error:
            if not self._is_lost:
                _log.warning("the monitor's history is kept in memory only: --monitor-history: %s", error)
            self._is_lost = True

    def _minute(self) -> int:
        return int(self._clock()) // MINUTE_S

    def _forget(self) -> None:
        """Drop what is older than a day, or of a clock that was wrong."""
        minute, hour = self._minute(), int(self._clock()) // HOUR_S
        for periods in self._minutes.values():
            for at in [at for at in periods if not minute - N_MINUTES < at <= minute]:
                del periods[at]
        for series in self._keys.values():
            for at in [at for at in series.hours if not hour - N_HOURS < at <= hour]:
                del series.hours[at]
        self._keys = {place: series for place, series in self._keys.items() if series.hours}
        self._minutes = {model: periods for model, periods in self._minutes.items() if periods}


class DayRecorder:
    """Adds what one model does to the day. A `RecordObserver`."""

    def __init__(self, day: DayHistory, model: str) -> None:
        self._day = day
        self._model = model

    def on_result(self, record: RequestRecord, task: TaskRecord, result: TaskResult) -> None:
        if not isinstance(result, Tokens) or not record.id:
            return
        minute, hour = self._day.minute_of(self._model), self._day.hour_of(self._model, record.client)
        for period in (minute, hour):
            if task.n_outputs == 1:
                period.add_first(task.ttft_s)
            elif n := len(result.tokens):
                period.add_between(task.gap_s, n)

    def on_end(self, record: RequestRecord, task: TaskRecord) -> None:
        if record.id:
            seconds = task.service_s if task.admitted_at else 0.0
            self._day.hour_of(self._model, record.client).add_usage(usage_of([task]), seconds)

    def on_request_end(self, record: RequestRecord) -> None:
        for period in (self._day.minute_of(self._model), self._day.hour_of(self._model, record.client)):
            period.add_request(record.status)

    def on_sample(self, n_prompt: int, n_cached: int, n_generated: int, n_waiting: int, n_busy: int) -> None:
        """Add what happened since the last sample; a minute without anything is not kept."""
        if n_prompt or n_cached or n_generated or n_waiting or n_busy:
            period = self._day.minute_of(self._model)
            period.n_evaluated += n_prompt
            period.n_cached += n_cached
            period.n_generated += n_generated
            period.add_load(n_waiting, n_busy)
        self._day.tick()


def _period(periods: dict[int, Period], at: int) -> Period:
    return periods.get(at) or periods.setdefault(at, Period())


def _read(path: Path) -> _File:
    """Raises OSError, ValueError or MsgspecError."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is too large")
    found = msgspec.msgpack.decode(path.read_bytes(), type=_File)
    if found.version != _VERSION:
        raise ValueError(f"it has version {found.version}")
    return found
