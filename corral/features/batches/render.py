"""Files and batches in OpenAI's format."""

from __future__ import annotations

from typing import Any

from corral.storage.batch_record import BatchRecord, Counts, FileRecord

_TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)


def render_file(file: FileRecord) -> dict[str, Any]:
    expiry = {"expires_at": file.expires_at} if file.expires_at is not None else {}
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.n_bytes,
        "created_at": file.created_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        **expiry,
    }


def render_batch(batch: BatchRecord, counts: Counts, eta_s: int | None = None) -> dict[str, Any]:
    """`eta_s`: seconds until it is expected to end."""
    failed = counts.error + counts.expired
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
        **{name: batch.times.get(name) for name in _TIMES},
        "request_counts": {"total": batch.total, "completed": counts.ok, "failed": failed},
        "usage": _usage(counts),
        "metadata": batch.metadata,
        **({"eta_seconds": eta_s} if eta_s is not None else {}),
    }


def _usage(counts: Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.n_input,
        "input_tokens_details": {"cached_tokens": counts.n_cached},
        "output_tokens": counts.n_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.n_input + counts.n_output,
    }
