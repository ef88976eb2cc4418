"""States that clients store under a name: in memory up to a budget, the rest on disk.

Changes run one after the other and to their end, whatever becomes of the request that asked. Opening never
waits: a session leaves memory only when its file is complete. For one event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import os
import re
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest, NotFound
from corral.storage.blob import Blob, read_pieces
from corral.storage.save_directory import SaveDirectory, check_name

T = TypeVar("T")

MAX_RESIDENT = 256  # each one takes a descriptor, of 1024 that a process usually has

_log = logging.getLogger("corral")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_N_NAMED = 20  # in an error message


@dataclasses.dataclass(frozen=True)
class SessionInfo:
    name: str
    n_bytes: int
    created_at: int  # unix seconds
    updated_at: int


def render_id(name: str) -> int | str:
    """compat: /sessions: ids are integers; a name that is not the usual form of one stays a string."""
    return int(name) if _INTEGER.fullmatch(name) and -(1 << 63) <= int(name) < 1 << 63 else name


def spill_directory(saves: SaveDirectory) -> SaveDirectory:
    """For sessions that memory has no room for, out of reach of names that clients choose for files."""
    return saves.subdirectory(".sessions", suffix=".ses1")


class SessionStore:
    """Mutable. A session is resident or a file; an older file that a resident one may have does not count.

    Copies count once in the budget, and each for itself in `MAX_RESIDENT`.
    """

    def __init__(self, budget_bytes: int, spill_to: SaveDirectory | None) -> None:
        self._budget = budget_bytes
        self._disk = spill_to
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._resident: collections.OrderedDict[str, Blob] = collections.OrderedDict()  # last used last
        files = spill_to.names() if spill_to else []
        self._infos = {f.name: SessionInfo(f.name, f.n_bytes, f.updated_at, f.updated_at) for f in files}

    @property
    def resident_bytes(self) -> int:
        return _total(self._resident.values())

    @property
    def n_sessions(self) -> int:
        return len(self._infos)

    def list(self) -> Sequence[SessionInfo]:
        """Integers by value, then the other names."""
        return sorted(self._infos.values(), key=lambda info: _rank(info.name))

    def open(self, name: str) -> Blob:
        """The session as it is now, valid until the caller closes it; its offset is not its own."""
        self._require(name)
        blob = self._resident.get(name)
        if blob is not None:
            self._resident.move_to_end(name)
            return blob.duplicate()
        assert self._disk is not None
        try:
            return Blob(self._disk.open(name))
        except InvalidRequest:  # somebody else removed the file
            self._infos.pop(name)
            raise self._unknown(name) from None

    async def put(self, name: str, blob: Blob) -> SessionInfo:
        """Store bytes that do not change any more; the blob itself remains the caller's, to be closed.

        Refused with `InsufficientStorage`, everything stored before remains, under this name too.
        """
        return await self._finish(self._put(check_name(name, "id_session"), blob.duplicate()))

    async def copy(self, name: str, new_name: str) -> SessionInfo:
        """Another name for the same bytes, which memory holds once; refused like `put`."""
        return await self._finish(self._copy(name, check_name(new_name, "id_session")))

    async def remove(self, name: str) -> None:
        """From memory and disk; those who have it open may read on."""
        await self._finish(self._remove(name))

    async def close(self) -> None:
        """Move everything to disk, if there is one; what fails is logged."""
        if self._disk is not None:
            await self._finish(self._spill_all())

    async def _finish(self, change: Coroutine[Any, Any, T]) -> T:
        """Cancelled halfway, a change would leave a thread that still writes."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # or a failed one would be in its own traceback, and keep blobs alive

    async def _put(self, name: str, blob: Blob) -> SessionInfo:
        try:
            async with self._lock:
                info = self._describe(name, blob)
                with self._refusing(info):
                    await (self._keep if info.n_bytes <= self._budget else self._spill)(info, blob)
                return info
        except CorralError:
            blob.close()  # whoever keeps the error does not keep the bytes
            raise

    async def _copy(self, name: str, new_name: str) -> SessionInfo:
        async with self._lock:
            with self.open(name) as source:
                info = self._describe(new_name, source)
                blob = self._resident.get(name)
                with self._refusing(info):
                    await (self._keep(info, blob) if blob else self._spill(info, source))
                return info

    async def _remove(self, name: str) -> None:
        async with self._lock:
            self._require(name)
            if self._disk is not None:
                await asyncio.to_thread(self._disk.remove, name)
            self._resident.pop(name, None)
            self._infos.pop(name, None)

    async def _spill_all(self) -> None:
        async with self._lock:
            for name, blob in tuple(self._resident.items()):
                try:
                    await self._spill(self._infos[name], blob)
                except Exception as error:
                    _log.error("session '%s' is lost: %s", name, error)

    async def _keep(self, info: SessionInfo, blob: Blob) -> None:
        """In memory; others make room, the least recently used ones first."""
        while True:
            others = {name: held for name, held in self._resident.items() if name != info.name}
            if len(others) < MAX_RESIDENT and _total([*others.values(), blob]) <= self._budget:
                break
            name, held = next(iter(others.items()))
            await self._spill(self._infos[name], held)
        self._resident.pop(info.name, None)
        self._resident[info.name] = blob
        self._infos[info.name] = info

    async def _spill(self, info: SessionInfo, blob: Blob) -> None:
        if self._disk is None:
            raise CorralError("there is no --slot-save-path to move any to")
        await asyncio.to_thread(_write, self._disk, info, blob)
        self._resident.pop(info.name, None)
        self._infos[info.name] = info

    @contextlib.contextmanager
    def _refusing(self, info: SessionInfo) -> Iterator[None]:
        try:
            yield
        except CorralError as error:
            use = f"{self.resident_bytes} of {self._budget} bytes"
            remedy = "give --slot-save-path" if self._disk is None else "make room on the disk"
            raise InsufficientStorage(
                f"there is no room for session '{info.name}' ({info.n_bytes} bytes): {len(self._resident)} "
                f"sessions (at most {MAX_RESIDENT}) hold {use} in memory, and {error.message}; "
                f"remove sessions, raise --sessions-ram or {remedy}"
            ) from None

    def _describe(self, name: str, blob: Blob) -> SessionInfo:
        now, older = int(time.time()), self._infos.get(name)
        return SessionInfo(name, blob.n_bytes, older.created_at if older else now, now)

    def _require(self, name: str) -> None:
        if check_name(name, "id_session") not in self._infos:
            raise self._unknown(name)

    def _unknown(self, name: str) -> NotFound:
        names = [info.name for info in self.list()]
        listed = ", ".join([*names[:_N_NAMED], *(["..."] if len(names) > _N_NAMED else [])])
        return NotFound(f"there is no session {render_id(name)!r}; there are: {listed or 'none'}")


def _rank(name: str) -> tuple[int, int, str]:
    rendered = render_id(name)
    return (0, rendered, "") if isinstance(rendered, int) else (1, 0, rendered)


def _total(blobs: Iterable[Blob]) -> int:
    return sum({id(blob): blob.n_bytes for blob in blobs}.values())


def _write(disk: SaveDirectory, info: SessionInfo, blob: Blob) -> None:
    with disk.create(info.name) as file:
        file.write(read_pieces(blob.fd, info.n_bytes))
        with contextlib.suppress(OSError):  # a file system without times
            os.utime(file.fd, (info.updated_at, info.updated_at))
        file.commit()
