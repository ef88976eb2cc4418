"""Files and batches as values: what the store keeps and the APIs render."""

from __future__ import annotations

import enum
import secrets
from typing import Any

import msgspec

from corral.core.client import Client


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


class Outcome(enum.IntEnum):
    """The outcome of a line."""

    OK = 0
    ERROR = 1
    CANCELED = 2
    EXPIRED = 3


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file. `batch`: its content are results of this batch; otherwise it is on disk under its id."""

    id: str
    purpose: str
    filename: str
    n_bytes: int
    created_at: int
    expires_at: int | None = None
    batch: str = ""
    is_output: bool = False  # otherwise, of a batch: its errors


class BatchRecord(msgspec.Struct, kw_only=True):
    """Mutable: a batch as OpenAI describes it. Times are Unix seconds."""

    id: str
    client: Client
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str = "validating"
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    times: dict[str, int] = {}  # `in_progress_at` and the like
    total: int = 0
    errors: list[dict[str, Any]] = []
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    front: str = ""  # the server that runs it, of several with the same storage

    @property
    def is_ended(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")

    def enter(self, status: str, now: int) -> None:
        self.status = status
        self.times = {**self.times, f"{status}_at": now}


class Result(msgspec.Struct, frozen=True):
    """The result of a line: what its file says, and the tokens that it took."""

    line: int
    outcome: Outcome
    text: bytes
    n_input: int = 0
    n_cached: int = 0
    n_output: int = 0


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the results of a batch. `bytes_ok`: of its output file."""

    ok: int = 0
    error: int = 0
    canceled: int = 0
    expired: int = 0
    bytes_ok: int = 0
    bytes_bad: int = 0
    n_input: int = 0
    n_cached: int = 0
    n_output: int = 0
