"""States that do not fit into host memory, as files in a directory with a byte budget.

They survive the server. One thread reads and writes files. The engine's thread owns the index, but the
file thread removes names of files that were evicted, unreadable or damaged; those are misses.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from corral.core.atomic_file import atomic_write, open_directory, remove_leftovers
from corral.core.chunk import TokenArray, common_prefix
from corral.core.errors import CorralError, InvalidRequest
from corral.engine.prefix import replaces, usable
from corral.engine.request import Request
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import SavedState
from corral.engine.ses1 import OVERHEAD_BYTES, Ses1, read_title
from corral.engine.ses1_table import table_bytes

MIN_FILE_REUSE = 64  # minimum tokens that reading a file must save
_SUFFIX = ".ses1"
_FILES = "[0-9a-f]" * 32 + _SUFFIX  # other files in the directory are left alone
_MAX_PENDING_BYTES = 1 << 30  # bytes of states waiting to be written; further ones are dropped

_log = logging.getLogger("corral")


@dataclass(frozen=True, slots=True)
class _Entry:
    tokens: TokenArray
    shifted_from: int
    reuse_key: ReuseKey
    cuts: tuple[int, ...] = ()


class DiskCache:
    """Mutable. Evicts the least recently used files; files of other models count in the budget too."""

    def __init__(
        self, directory: str, budget_bytes: int, ses1: Ses1, n_ctx: int, n_fixed: Callable[[int], int]
    ) -> None:
        self._directory = Path(directory)
        self._budget = budget_bytes
        self._ses1 = ses1
        self._fingerprint = ses1.fingerprint
        self._n_fixed = n_fixed
        self._files = ThreadPoolExecutor(1, "disk")
        self._pending: dict[str, int] = {}
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_directory(self._directory) as fd:
                remove_leftovers(fd)
        except OSError as error:
            raise CorralError(f"--cache-disk: {error}") from None
        self._index = dict(self._scan(n_ctx))

    def runs(self, reuse_key: ReuseKey) -> Iterator[TokenArray]:
        return (entry.tokens for entry in list(self._index.values()) if entry.reuse_key == reuse_key)

    def fetch(self, request: Request, n_at_hand: int) -> Future[SavedState | None] | None:
        """Start reading the file with the longest prefix of a prompt, if it has many more than `n_at_hand`
        tokens. A file without a tenant may be from a server without keys: it is not for all."""
        entries = [item for item in list(self._index.items()) if item[1].reuse_key == request.reuse_key]
        matches = ((usable(entry, request, self._n_fixed), name) for name, entry in entries)
        n, name = max(matches, default=(0, ""))
        return self._files.submit(self._read, name) if n >= n_at_hand + MIN_FILE_REUSE else None

    def put(self, saved: SavedState, is_last: bool = False) -> None:
        """Queue a state for writing; it is dropped if the disk is too slow, unless it `is_last`."""
        if saved.is_from_disk or saved.is_imported:
            return
        if len(saved.tokens) < MIN_FILE_REUSE or _file_bytes(saved) > self._budget:
            return
        if sum(list(self._pending.values())) > _MAX_PENDING_BYTES and not is_last:
            return
        key = b"".join((self._fingerprint, saved.lora_key, saved.tenant, saved.tokens.tobytes()))
        name = xxhash.xxh3_128_hexdigest(key) + _SUFFIX
        if name not in self._index:
            self._drop_all(lambda old: replaces(saved, old, self._n_fixed))
            self._index[name] = _Entry(saved.tokens, saved.shifted_from, saved.reuse_key, saved.cuts)
            self._pending[name] = saved.n_bytes
            self._files.submit(self._write, name, saved)

    def forget(self, tokens: TokenArray, tenant: bytes | None = None) -> None:
        """Drop all states that are a prefix of `tokens`; only those of a tenant if one is given."""
        self._drop_all(
            lambda old: (
                tenant in (None, old.reuse_key.tenant)
                and common_prefix(old.tokens, tokens) == len(old.tokens)
            )
        )

    def close(self) -> None:
        """Wait until all states are written."""
        self._files.shutdown()

    def _drop_all(self, condition: Callable[[_Entry], bool]) -> None:
        for name, entry in list(self._index.items()):
            if condition(entry):
                self._index.pop(name, None)
                self._files.submit(self._remove, name)

    def _scan(self, n_ctx: int) -> Iterator[tuple[str, _Entry]]:
        for path in self._directory.glob(_FILES):
            try:
                with path.open("rb") as file:
                    title = read_title(file.fileno())
            except InvalidRequest:
                self._remove(path.name)
            except OSError:
                continue
            else:
                if title.fingerprint == self._fingerprint and len(title.tokens) <= n_ctx:
                    yield path.name, _Entry(title.tokens, title.shifted_from, title.reuse_key, title.cuts)

    def _read(self, name: str) -> SavedState | None:
        path = self._directory / name
        try:
            with path.open("rb") as file:
                saved = self._ses1.read(file.fileno(), is_ours=True)
            with contextlib.suppress(OSError):
                os.utime(path)
            return replace(saved, is_from_disk=True)
        except (OSError, CorralError) as error:
            _log.warning("--cache-disk: a file cannot be used: %s", error)
            self._remove(name)
            self._index.pop(name, None)
            return None

    def _write(self, name: str, saved: SavedState) -> None:
        try:
            self._make_room(_file_bytes(saved))
            with atomic_write(self._directory / name) as file:
                self._ses1.write(file.fileno(), saved)
        except OSError as error:
            _log.warning("--cache-disk: cannot write a state: %s", error.strerror)
            self._index.pop(name, None)
        finally:
            self._pending.pop(name, None)

    def _make_room(self, n_bytes: int) -> None:
        files = sorted((f.stat().st_mtime, f.stat().st_size, f) for f in self._directory.glob(_FILES))
        n_used = sum(size for _, size, _ in files)
        for _, size, path in files:
            if n_used + n_bytes <= self._budget:
                return
            self._remove(path.name)
            self._index.pop(path.name, None)
            n_used -= size

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._directory / name).unlink(missing_ok=True)


def _file_bytes(saved: SavedState) -> int:
    """Return the largest size its file may have."""
    n_table = table_bytes(len(saved.checkpoints)) if saved.checkpoints else 0
    return saved.n_bytes + saved.tokens.nbytes + n_table + OVERHEAD_BYTES
