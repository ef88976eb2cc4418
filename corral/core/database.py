"""An SQLite database whose commits are on disk. All methods block; use it from one thread at a time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corral.core.errors import CorralError, InsufficientStorage


class Database:
    def __init__(self, path: Path, schema: str, option: str, is_shared: bool = False) -> None:
        """Open or create a database. Raises CorralError, which names the `option`, if it cannot be used.
        `is_shared`: with servers on other machines, whose memory a write-ahead log cannot be in."""
        self._option = option
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # it may have prompts
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute(f"PRAGMA journal_mode = {'DELETE' if is_shared else 'WAL'}")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(schema)
        except (sqlite3.Error, OSError) as error:
            raise CorralError(f"{option}: '{path}' cannot be used: {error}") from None

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._explained():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all changes in the block are made durably, or none."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InsufficientStorage(f"{self._option}: {error}") from None
