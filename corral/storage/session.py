"""States that clients store by name: in memory up to a budget, the rest on disk.

Changes run one after the other and always complete, even if the request is cancelled. Opening never waits:
a session leaves memory only when its file is complete. For one event loop.
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

MAX_RESIDENT = 256  # each takes a descriptor; a process usually has 1024

_log = logging.getLogger("corral")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_N_NAMED = 20  # in an error message


@dataclasses.dataclass(frozen=True)
class SessionInfo:
    name: str
    n_bytes: int
    created_at: int  # Unix seconds
    updated_at: int


def render_id(name: str) -> int | str:
    """Return the id of a session. compat: /sessions: ids are integers; other names stay strings."""
    return int(name) if _INTEGER.fullmatch(name) and -(1 << 63) <= int(name) < 1 << 63 else name


def spill_directory(saves: SaveDirectory) -> SaveDirectory:
    """Return the directory for sessions that do not fit in memory; clients cannot reach it with file
    names."""
    return saves.subdirectory(".sessions", suffix=".ses1")


class SessionStore:
    """Stored sessions. A session is resident or a file; an older file of a resident session is ignored.

    Copies count once in the budget, but separately in `MAX_RESIDENT`.
    """

    def __init__(self, budget_bytes: int, spill_to: SaveDirectory | None, is_shared: bool = False) -> None:
        """`is_shared`: other servers use the directory, too, so that nothing is kept in memory."""
        self._is_shared = is_shared and spill_to is not None
        self._budget = 0 if self._is_shared else budget_bytes
        self._disk = spill_to
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._resident: collections.OrderedDict[str, Blob] = collections.OrderedDict()  # by last use
        self._infos = self._read_infos()

    @property
    def resident_bytes(self) -> int:
        return _total(self._resident.values())

    @property
    def n_sessions(self) -> int:
        self._look()
        return len(self._infos)

    def list(self) -> Sequence[SessionInfo]:
        """List the sessions: integers by value, then other names."""
        self._look()
        return sorted(self._infos.values(), key=lambda info: _rank(info.name))

    def open(self, name: str) -> Blob:
        """Open the current state; it stays valid until the caller closes it. The file offset is shared."""
        self._require(name)
        blob = self._resident.get(name)
        if blob is not None:
            self._resident.move_to_end(name)
            return blob.duplicate()
        assert self._disk is not None
        try:
            return Blob(self._disk.open(name))
        except InvalidRequest:  # the file was removed by another process
            self._infos.pop(name, None)
            raise self._unknown(name) from None

    async def put(self, name: str, blob: Blob) -> SessionInfo:
        """Store bytes that no longer change; the caller still closes its blob.

        If this raises InsufficientStorage, everything stored before remains, including this name.
        """
        return await self._finish(self._put(check_name(name, "id_session"), blob.duplicate()))

    async def copy(self, name: str, new_name: str) -> SessionInfo:
        """Add another name for the same bytes, which are held once in memory; raises as `put` does."""
        return await self._finish(self._copy(name, check_name(new_name, "id_session")))

    async def remove(self, name: str) -> None:
        """Remove a session from memory and disk. Open blobs stay readable."""
        await self._finish(self._remove(name))

    async def close(self) -> None:
        """Move everything to disk, if there is one; failures are logged."""
        if self._disk is not None:
            await self._finish(self._spill_all())

    async def _finish(self, change: Coroutine[Any, Any, T]) -> T:
        """Shield a change from cancellation, which would leave a thread that still writes."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # otherwise a failed task would be in its own traceback, and keep blobs alive

    async def _put(self, name: str, blob: Blob) -> SessionInfo:
        try:
            async with self._lock:
                info = self._describe(name, blob)
                with self._refusing(info):
                    await (self._keep if info.n_bytes <= self._budget else self._spill)(info, blob)
                return info
        except CorralError as error:
            blob.close()  # so that a reference to the error does not keep the bytes
            error.__context__ = None  # nor, by its frames, those of other sessions
            raise error.with_traceback(None) from None

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
        """Keep a session in memory; the least recently used ones are moved to disk to make room."""
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
            raise CorralError("without --slot-save-path none can be moved to disk")
        await asyncio.to_thread(_write, self._disk, info, blob)
        self._resident.pop(info.name, None)
        self._infos[info.name] = info

    @contextlib.contextmanager
    def _refusing(self, info: SessionInfo) -> Iterator[None]:
        try:
            yield
        except CorralError as error:
            use = f"{self.resident_bytes} of {self._budget} bytes"
            remedy = "set --slot-save-path" if self._disk is None else "free disk space"
            raise InsufficientStorage(
                f"no room for session '{info.name}' ({info.n_bytes} bytes): {len(self._resident)} "
                f"sessions (the limit is {MAX_RESIDENT}) use {use} of memory, and {error.message}; "
                f"remove sessions, raise --sessions-ram or {remedy}"
            ) from None

    def _describe(self, name: str, blob: Blob) -> SessionInfo:
        now, older = int(time.time()), self._infos.get(name)
        return SessionInfo(name, blob.n_bytes, older.created_at if older else now, now)

    def _read_infos(self) -> dict[str, SessionInfo]:
        files = self._disk.names() if self._disk else []
        return {f.name: SessionInfo(f.name, f.n_bytes, f.updated_at, f.updated_at) for f in files}

    def _look(self) -> None:
        """See what other servers have done."""
        if self._is_shared:
            self._infos = self._read_infos()

    def _require(self, name: str) -> None:
        self._look()
        if check_name(name, "id_session") not in self._infos:
            raise self._unknown(name)

    def _unknown(self, name: str) -> NotFound:
        names = [info.name for info in self.list()]
        listed = ", ".join([*names[:_N_NAMED], *(["..."] if len(names) > _N_NAMED else [])])
        return NotFound(f"session {render_id(name)!r} does not exist; available sessions: {listed or 'none'}")


def _rank(name: str) -> tuple[int, int, str]:
    rendered = render_id(name)
    return (0, rendered, "") if isinstance(rendered, int) else (1, 0, rendered)


def _total(blobs: Iterable[Blob]) -> int:
    return sum({id(blob): blob.n_bytes for blob in blobs}.values())


def _write(disk: SaveDirectory, info: SessionInfo, blob: Blob) -> None:
    with disk.create(info.name) as file:
        file.write(read_pieces(blob.fd, info.n_bytes))
        with contextlib.suppress(OSError):  # a file system without timestamps
            os.utime(file.fd, (info.updated_at, info.updated_at))
        file.commit()
