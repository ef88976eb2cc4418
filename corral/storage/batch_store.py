"""Files, batches and their results in a directory (`--batches`): every key has its own, and sees no other.

What is known of them is in an SQLite database, with every result as a row that is on disk before it counts;
uploaded files are next to it. A directory that was removed is made again. All methods block; use them from
one thread at a time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from corral.core.database import Database
from corral.core.errors import CorralError, InsufficientStorage, NotFound
from corral.core.file import file_error
from corral.storage.batch_record import BatchRecord, Counts, FileRecord, Result

MAX_FILE_BYTES = 200 << 20
MAX_KEY_BYTES = 4 << 30
MAX_FILES = 10_000  # of one key
KEPT_S = 30 * 86400  # a batch and its results, after its end
_STRAY_S = 3600.0  # after which an upload of another server that is not known was interrupted
_FULL = "the files of this key take all the room they may; delete some"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, owner TEXT, batch TEXT, bytes INTEGER, expires_at INTEGER,
    record BLOB);
CREATE TABLE IF NOT EXISTS batches (
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, owner TEXT, is_ended INTEGER, ended_at INTEGER, record BLOB);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT, line INTEGER, outcome INTEGER, bytes INTEGER, n_input INTEGER, n_cached INTEGER,
    n_output INTEGER, text BLOB, PRIMARY KEY (batch, line));
CREATE INDEX IF NOT EXISTS sums ON results (batch, outcome, bytes, n_input, n_cached, n_output);
CREATE INDEX IF NOT EXISTS file_owners ON files (owner);
CREATE INDEX IF NOT EXISTS batch_owners ON batches (owner);
"""
_UNFINISHED = "SELECT record FROM batches WHERE NOT is_ended ORDER BY n"
_COUNTS = """
SELECT sum(outcome = 0), sum(outcome = 1), sum(outcome = 2), sum(outcome = 3), sum((outcome = 0) * bytes),
    sum((outcome > 0) * bytes), sum(n_input), sum(n_cached), sum(n_output) FROM results WHERE batch = ?
"""


class BatchStore:
    def __init__(
        self, path: Path, front: str = "", is_alive: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`path` must be a writable directory; only servers that have a name, `front`, may share it.
        `is_alive`: whether the server with a name lives."""
        self._path = path
        self._front = front
        self._is_alive = is_alive
        self._lock, self._database = self._open()
        try:
            self._remove_strays()
        except BaseException:
            self.close()
            raise

    @property
    def is_shared(self) -> bool:
        return bool(self._front)

    def close(self) -> None:
        self._database.close()
        os.close(self._lock)

    @property
    def _db(self) -> Database:
        if not os.fstat(self._lock).st_nlink:
            try:
                self._path.mkdir(0o700, parents=True, exist_ok=True)
            except OSError as error:
                message = "--batches: the directory was removed, and cannot be made"
                raise file_error(message, error) from None
            lock, database = self._open()
            self.close()
            self._lock, self._database = lock, database
        return self._database

    def _open(self) -> tuple[int, Database]:
        lock = _lock(self._path, fcntl.LOCK_SH if self._front else fcntl.LOCK_EX)
        try:
            path, is_shared = self._path / "batches.sqlite", self.is_shared
            return lock, Database(path, _SCHEMA, "--batches", is_shared)
        except BaseException:
            os.close(lock)
            raise

    def add_file(self, owner: str, file: FileRecord, content: BinaryIO) -> None:
        """Copy an uploaded file. Raises InsufficientStorage if the key has too much."""
        self._check_room(owner, file.n_bytes)
        path = self.path_of(file.id)
        try:
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
            self._insert_files(owner, [file])
        except OSError as error:
            path.unlink(missing_ok=True)
            raise file_error("the file cannot be saved", error) from None
        except CorralError:
            path.unlink(missing_ok=True)
            raise

    def path_of(self, file_id: str) -> Path:
        return self._path / file_id

    def find_file(self, owner: str, id: str) -> FileRecord:
        rows = self._db.read("SELECT record FROM files WHERE id = ? AND owner = ?", id, owner)
        found = [file for file in _decode(rows, FileRecord) if self._is_there(file)]
        if not found:
            raise NotFound(f"file '{id:.64}' does not exist")
        return found[0]

    def list_files(self, owner: str) -> list[FileRecord]:
        """Return all files of a key, oldest first."""
        rows = self._db.read("SELECT record FROM files WHERE owner = ? ORDER BY n", owner)
        return [file for file in _decode(rows, FileRecord) if self._is_there(file)]

    def _is_there(self, file: FileRecord) -> bool:
        """Whether it has not expired, and nobody has removed it from the directory."""
        return not _is_over(file) and (bool(file.batch) or self.path_of(file.id).exists())

    def remove_file(self, owner: str, id: str) -> None:
        self._drop(self.find_file(owner, id))

    def save_batch(self, batch: BatchRecord, files: Sequence[FileRecord] = ()) -> None:
        """Insert a batch that this server runs, or replace it. `files`: with its results."""
        batch.front = self._front
        self._insert_files(batch.client.id, files)
        values = (batch.id, batch.client.id, batch.is_ended, int(time.time()), msgspec.json.encode(batch))
        with self._db.write() as db:
            db.execute(
                "INSERT INTO batches (id, owner, is_ended, ended_at, record) VALUES (?, ?, ?, ?, ?) ON "
                "CONFLICT (id) DO UPDATE SET is_ended = excluded.is_ended, ended_at = excluded.ended_at, "
                "record = excluded.record",
                values,
            )

    def find_batch(self, owner: str, id: str) -> BatchRecord:
        rows = self._db.read("SELECT record FROM batches WHERE id = ? AND owner = ?", id, owner)
        if not rows:
            raise NotFound(f"batch '{id:.64}' not found")
        return _decode(rows, BatchRecord)[0]

    def list_batches(self, owner: str) -> list[BatchRecord]:
        """Return all batches of a key, oldest first."""
        rows = self._db.read("SELECT record FROM batches WHERE owner = ? ORDER BY n", owner)
        return _decode(rows, BatchRecord)

    def unfinished(self) -> list[BatchRecord]:
        return _decode(self._db.read(_UNFINISHED), BatchRecord)

    def claim(self) -> list[BatchRecord]:
        """Return the unfinished batches of servers that are gone: this one runs them from now on."""
        if not any(self._is_abandoned(batch) for batch in self.unfinished()):
            return []
        with self._db.write() as db:
            claimed = [
                batch for batch in _decode(db.execute(_UNFINISHED), BatchRecord) if self._is_abandoned(batch)
            ]
            for batch in claimed:
                batch.front = self._front
            rows = [(msgspec.json.encode(batch), batch.id) for batch in claimed]
            db.executemany("UPDATE batches SET record = ? WHERE id = ?", rows)
        return claimed

    def is_used(self, file_id: str) -> bool:
        """Whether a batch that has not ended reads this file."""
        return any(batch.input_file_id == file_id for batch in self.unfinished())

    def _is_abandoned(self, batch: BatchRecord) -> bool:
        return not self._is_alive(batch.front)

    def remove_batch(self, batch: BatchRecord) -> None:
        """Remove a batch and its results."""
        with self._db.write() as db:
            db.execute("DELETE FROM batches WHERE id = ?", (batch.id,))
            db.execute("DELETE FROM results WHERE batch = ?", (batch.id,))
            db.execute("DELETE FROM files WHERE batch = ?", (batch.id,))

    def add_results(self, batch_id: str, results: Iterable[Result]) -> None:
        """Add results; a line that has one keeps it."""
        rows = [
            (batch_id, r.line, r.outcome, len(r.text) + 1, r.n_input, r.n_cached, r.n_output, r.text)
            for r in results
        ]
        with self._db.write() as db:
            db.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def done_lines(self, batch_id: str) -> set[int]:
        return {line for (line,) in self._db.read("SELECT line FROM results WHERE batch = ?", batch_id)}

    def counts(self, batch_id: str) -> Counts:
        (row,) = self._db.read(_COUNTS, batch_id)
        return Counts(**dict(zip(Counts.__struct_fields__, (n or 0 for n in row), strict=True)))

    def read_results(self, batch_id: str, is_ok: bool | None, after: int, n: int) -> list[tuple[int, bytes]]:
        """Return up to `n` results after a line, with their lines. `is_ok`: those of the output file, or of
        the error file; None: all."""
        kinds = {None: "", True: " AND outcome = 0", False: " AND outcome > 0"}[is_ok]
        query = f"SELECT line, text FROM results WHERE batch = ? AND line > ?{kinds} ORDER BY line LIMIT ?"
        return [(line, text) for line, text in self._db.read(query, batch_id, after, n)]

    def sweep(self) -> None:
        """Remove files that have expired, and batches that ended long ago."""
        now = int(time.time())
        for file in _decode(self._db.read("SELECT record FROM files WHERE expires_at <= ?", now), FileRecord):
            self._drop(file)
        old = "SELECT record FROM batches WHERE is_ended AND ended_at <= ?"
        for batch in _decode(self._db.read(old, now - KEPT_S), BatchRecord):
            self.remove_batch(batch)

    def _drop(self, file: FileRecord) -> None:
        """Remove a file; a batch still knows which of its lines are done."""
        kinds = "outcome = 0" if file.is_output else "outcome > 0"
        with self._db.write() as db:
            db.execute("DELETE FROM files WHERE id = ?", (file.id,))
            if file.batch:
                drop = f"UPDATE results SET text = x'', bytes = 0 WHERE batch = ? AND {kinds}"
                db.execute(drop, (file.batch,))
        if not file.batch:
            self.path_of(file.id).unlink(missing_ok=True)

    def _insert_files(self, owner: str, files: Sequence[FileRecord]) -> None:
        rows = [(f.id, owner, f.batch, f.n_bytes, f.expires_at, msgspec.json.encode(f)) for f in files]
        with self._db.write() as db:
            db.executemany(
                "INSERT OR REPLACE INTO files (id, owner, batch, bytes, expires_at, record) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )

    def _check_room(self, owner: str, n_bytes: int) -> None:
        ((n, used),) = self._db.read("SELECT count(*), sum(bytes) FROM files WHERE owner = ?", owner)
        if n >= MAX_FILES or (used or 0) + n_bytes > MAX_KEY_BYTES:
            raise InsufficientStorage(_FULL)

    def _remove_strays(self) -> None:
        """Remove files of uploads that a crash interrupted."""
        known = {id for (id,) in self._db.read("SELECT id FROM files")}
        for path in self._path.glob("file-*"):
            if path.name not in known and not (self._front and _is_recent(path)):
                path.unlink(missing_ok=True)


T = TypeVar("T")


def _decode(rows: Iterable[tuple[Any, ...]], kind: type[T]) -> list[T]:
    return [msgspec.json.decode(record, type=kind) for (record,) in rows]


def _is_recent(path: Path) -> bool:
    """Whether another server may still be writing a file."""
    try:
        return time.time() < path.stat().st_mtime + _STRAY_S
    except FileNotFoundError:
        return True


def _is_over(file: FileRecord) -> bool:
    return file.expires_at is not None and file.expires_at <= time.time()


def _lock(path: Path, kind: int) -> int:
    """Keep other servers out of the directory, unless all share it; what they did would be done twice."""
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CorralError(f"--batches '{path}' cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise CorralError(f"--batches '{path}' is used by another server") from None
    except OSError:
        pass  # a file system without locks
    return fd
