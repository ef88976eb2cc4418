"""States that clients store by name, each its own: in memory up to a budget of all, the rest on disk.

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
from typing import Any, TypeAlias, TypeVar

from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest, NotFound
from corral.storage.blob import Blob, read_pieces
from corral.storage.chat_store import KEY_FOLDER
from corral.storage.save_directory import SaveDirectory, check_name

T = TypeVar("T")
Place: TypeAlias = tuple[str, str]  # of a session: its owner and name

MAX_RESIDENT = 256  # each takes a descriptor; a process usually has 1024

_log = logging.getLogger("corral")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_SUFFIX = ".ses1"
_N_NAMED = 20  # in an error message


@dataclasses.dataclass(frozen=True)
class SessionInfo:
    name: str
    n_bytes: int
    created_at: int  # Unix seconds
    updated_at: int
    owner: str = ""  # the folder of the client's files; empty: clients share their sessions

    @property
    def place(self) -> Place:
        return self.owner, self.name


def render_id(name: str) -> int | str:
    """Return the id of a session. compat: /sessions: ids are integers; other names stay strings."""
    return int(name) if _INTEGER.fullmatch(name) and -(1 << 63) <= int(name) < 1 << 63 else name


def spill_directory(saves: SaveDirectory) -> SaveDirectory:
    """Return the directory for sessions that do not fit in memory; clients cannot reach it with file
    names."""
    return saves.subdirectory(".sessions", suffix=_SUFFIX)


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
        self._resident: collections.OrderedDict[Place, Blob] = collections.OrderedDict()  # by last use
        self._folders: dict[str, SaveDirectory] = {}  # in `_disk`, by owner
        self._infos = self._read_infos()

    @property
    def resident_bytes(self) -> int:
        return _total(self._resident.values())

    @property
    def n_sessions(self) -> int:
        self._look()
        return len(self._infos)

    def list(self, owner: str = "") -> Sequence[SessionInfo]:
        """List an owner's sessions: integers by value, then other names."""
        self._look()
        own = (info for info in self._infos.values() if info.owner == owner)
        return sorted(own, key=lambda info: _rank(info.name))

    def open(self, name: str, owner: str = "") -> Blob:
        """Open the current state; it stays valid until the caller closes it. The file offset is shared."""
        place = self._require(name, owner)
        blob = self._resident.get(place)
        if blob is not None:
            self._resident.move_to_end(place)
            return blob.duplicate()
        try:
            return Blob(self._folder(owner).open(name))
        except InvalidRequest:  # the file was removed by another process
            self._infos.pop(place, None)
            raise self._unknown(name, owner) from None

    async def put(self, name: str, blob: Blob, owner: str = "") -> SessionInfo:
        """Store bytes that no longer change; the caller still closes its blob.

        If this raises InsufficientStorage, everything stored before remains, including this name.
        """
        return await self._finish(self._put(_place(name, owner), blob.duplicate()))

    async def copy(self, name: str, new_name: str, owner: str = "") -> SessionInfo:
        """Add another name for the same bytes, which are held once in memory; raises as `put` does."""
        return await self._finish(self._copy(name, _place(new_name, owner)))

    async def remove(self, name: str, owner: str = "") -> None:
        """Remove a session from memory and disk. Open blobs stay readable."""
        await self._finish(self._remove(name, owner))

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

    async def _put(self, place: Place, blob: Blob) -> SessionInfo:
        try:
            async with self._lock:
                info = self._describe(place, blob)
                with self._refusing(info):
                    await (self._keep if info.n_bytes <= self._budget else self._spill)(info, blob)
                return info
        except CorralError as error:
            blob.close()  # so that a reference to the error does not keep the bytes
            error.__context__ = None  # nor, by its frames, those of other sessions
            raise error.with_traceback(None) from None

    async def _copy(self, name: str, to: Place) -> SessionInfo:
        owner, _ = to
        async with self._lock:
            with self.open(name, owner) as source:
                info = self._describe(to, source)
                blob = self._resident.get((owner, name))
                with self._refusing(info):
                    await (self._keep(info, blob) if blob else self._spill(info, source))
                return info

    async def _remove(self, name: str, owner: str) -> None:
        async with self._lock:
            place = self._require(name, owner)
            if self._disk is not None:
                await asyncio.to_thread(self._folder(owner).remove, name)
            self._resident.pop(place, None)
            self._infos.pop(place, None)

    async def _spill_all(self) -> None:
        async with self._lock:
            for place, blob in tuple(self._resident.items()):
                try:
                    await self._spill(self._infos[place], blob)
                except Exception as error:
                    _log.error("session '%s' is lost: %s", place[1], error)

    async def _keep(self, info: SessionInfo, blob: Blob) -> None:
        """Keep a session in memory; the least recently used ones are moved to disk to make room."""
        while True:
            others = {place: held for place, held in self._resident.items() if place != info.place}
            if len(others) < MAX_RESIDENT and _total([*others.values(), blob]) <= self._budget:
                break
            place, held = next(iter(others.items()))
            await self._spill(self._infos[place], held)
        self._resident.pop(info.place, None)
        self._resident[info.place] = blob
        self._infos[info.place] = info

    async def _spill(self, info: SessionInfo, blob: Blob) -> None:
        if self._disk is None:
            raise CorralError("without --slot-save-path none can be moved to disk")
        await asyncio.to_thread(_write, self._folder(info.owner), info, blob)
        self._resident.pop(info.place, None)
        self._infos[info.place] = info

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

    def _describe(self, place: Place, blob: Blob) -> SessionInfo:
        now, older = int(time.time()), self._infos.get(place)
        owner, name = place
        return SessionInfo(name, blob.n_bytes, older.created_at if older else now, now, owner)

    def _folder(self, owner: str) -> SaveDirectory:
        assert self._disk is not None
        if not owner:
            return self._disk
        if owner not in self._folders:
            self._folders[owner] = self._disk.subdirectory(owner, suffix=_SUFFIX)
        return self._folders[owner]

    def _read_infos(self) -> dict[Place, SessionInfo]:
        if self._disk is None:
            return {}
        owners = ["", *(name for name in self._disk.folders() if name.startswith(KEY_FOLDER))]
        infos = (
            SessionInfo(file.name, file.n_bytes, file.updated_at, file.updated_at, owner)
            for owner in owners
            for file in self._folder(owner).names()
        )
        return {info.place: info for info in infos}

    def _look(self) -> None:
        """See what other servers have done."""
        if self._is_shared:
            self._infos = self._read_infos()

    def _require(self, name: str, owner: str) -> Place:
        self._look()
        place = _place(name, owner)
        if place not in self._infos:
            raise self._unknown(name, owner)
        return place

    def _unknown(self, name: str, owner: str) -> NotFound:
        names = [info.name for info in self.list(owner)]
        listed = ", ".join([*names[:_N_NAMED], *(["..."] if len(names) > _N_NAMED else [])])
        return NotFound(f"session {render_id(name)!r} does not exist; available sessions: {listed or 'none'}")


def _place(name: str, owner: str) -> Place:
    return owner, check_name(name, "id_session")


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
