"""Send files: uploaded ones from disk, results of batches row by row."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import FileResponse, Response, StreamingResponse

from corral.api.user_content import USER_CONTENT
from corral.features.batches.runner import BatchRunner
from corral.storage.batch_record import FileRecord
from corral.storage.batch_store import BatchStore

JSONL = "application/x-jsonl"
_BINARY = "application/octet-stream"
_N_ROWS = 256  # at once


def respond_file(runner: BatchRunner, store: BatchStore, file: FileRecord) -> Response:
    if file.batch:
        return respond_results(runner, store, file.batch, file.is_output)
    return FileResponse(store.path_of(file.id), media_type=_BINARY, headers=USER_CONTENT)


def respond_results(runner: BatchRunner, store: BatchStore, batch_id: str, is_ok: bool | None) -> Response:
    """Send the results of a batch. `is_ok`: only those of its output file, or of its error file."""
    return StreamingResponse(_rows(runner, store, batch_id, is_ok), media_type=JSONL, headers=USER_CONTENT)


async def _rows(
    runner: BatchRunner, store: BatchStore, batch_id: str, is_ok: bool | None
) -> AsyncGenerator[bytes]:
    rows, last = [(0, b"")], 0
    while rows:
        rows = await runner.on_disk(store.read_results, batch_id, is_ok, last, _N_ROWS)
        if rows:
            last = rows[-1][0]
            yield b"".join(text + b"\n" for _, text in rows)
