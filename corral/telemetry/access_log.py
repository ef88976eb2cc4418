"""One log line for every HTTP request that has ended, without query, headers and bodies.

Requests for files of a page and health checks are logged at DEBUG.
"""

from __future__ import annotations

import functools
import logging
import urllib.parse
from typing import Any

from corral.telemetry.record import RequestRecord, TaskRecord
from corral.telemetry.request_observer import Asked

_MAX_PATH = 256
_MAX_CLIENT = 64
_LINE = (
    "%(method)s %(path)s %(status)d in %(ms).1f ms, %(request_bytes)d bytes in, "
    "%(response_bytes)d out, %(client)s"
)
# Parts of the line about the engine's work, by the field that provides it.
_WORK = {
    "queue_ms": "; %(queue_ms).1f ms queued",
    "prompt_n": ", prompt %(prompt_n)d tokens in %(prompt_ms).1f ms",
    "prompt_per_second": " (%(prompt_per_second).1f tokens/s)",
    "cache_n": ", %(cache_n)d cached (%(cache)s)",
    "predicted_n": ", generated %(predicted_n)d tokens in %(predicted_ms).1f ms",
    "predicted_per_second": " (%(predicted_per_second).1f tokens/s)",
}
_PROBES = ("/health", "/v1/health", "/ready")
_ANSWERED = (200, 503)  # the answers of a probe
_log = logging.getLogger("corral")


class AccessLog:
    """A `RequestObserver` that logs."""

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        level = logging.DEBUG if _is_file(asked, record) or _is_probe(asked, record) else logging.INFO
        if not _log.isEnabledFor(level):
            return
        work = _work(record)
        text = _LINE + (", key %(key)s" if record.client.name else "") + ", %(id)s"
        if work:
            text += "".join(part for name, part in _WORK.items() if name in work)
        fields = {**_fields(asked, record), **work}
        # Not `_log.log`, which would look for the caller.
        _log.handle(logging.LogRecord(_log.name, level, __file__, 0, text, (fields,), None))


def _is_file(asked: Asked, record: RequestRecord) -> bool:
    """Whether a static file answered: no route did, and the request succeeded."""
    is_read = asked.method in ("GET", "HEAD")
    return is_read and not asked.route and 0 < record.status < 400


def _is_probe(asked: Asked, record: RequestRecord) -> bool:
    """Whether it was a health check, which comes every few seconds; a refused one is logged as usual."""
    return asked.method in ("GET", "HEAD") and asked.path in _PROBES and record.status in _ANSWERED


def _fields(asked: Asked, record: RequestRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "key": record.client.name,
        "method": asked.method,
        "path": _path(asked),
        "status": record.status,
        "ms": round((record.ended_at - record.started_at) * 1e3, 1),
        "client": asked.address[:_MAX_CLIENT] or "unix",
        "request_bytes": _content_length(asked),
        "response_bytes": record.n_bytes,
    }


def _work(record: RequestRecord) -> dict[str, Any]:
    """Return the engine's work for all tasks of the request, without fields that do not apply."""
    tasks = [task for task in record.tasks if task.admitted_at]
    if not tasks:
        return {}
    queue_ms = round(max(task.queue_s for task in tasks) * 1e3, 1)
    timings = [task.timings for task in tasks if task.timings is not None]
    if not timings:
        return {"queue_ms": queue_ms, **_embedding(tasks)}
    return {
        "queue_ms": queue_ms,
        **_rate("prompt", sum(t.prompt_n for t in timings), sum(t.prompt_ms for t in timings)),
        "cache": tasks[0].tier.value,
        "cache_n": sum(t.cache_n for t in timings),
        **_rate("predicted", sum(t.predicted_n for t in timings), sum(t.predicted_ms for t in timings)),
    }


def _embedding(tasks: list[TaskRecord]) -> dict[str, Any]:
    """Return the work of finished tasks that generate nothing."""
    done = [task for task in tasks if task.is_done]
    took_ms = sum(task.ended_at - task.admitted_at for task in done) * 1e3
    return _rate("prompt", sum(task.n_prompt for task in done), took_ms)


def _rate(what: str, n: int, ms: float) -> dict[str, Any]:
    """Return tokens, time and tokens per second, as far as they are known."""
    fields: dict[str, Any] = {f"{what}_n": n, f"{what}_ms": round(ms, 1)} if n else {}
    return {**fields, f"{what}_per_second": round(n / ms * 1e3, 1)} if n and ms > 0 else fields


def _path(asked: Asked) -> str:
    target = asked.target[: 2 * _MAX_PATH]
    return _quoted(target.decode("latin-1") if target else asked.path)


@functools.lru_cache(maxsize=256)
def _quoted(path: str) -> str:
    """Return the path as sent, with characters that could end a line percent-encoded."""
    return urllib.parse.quote(path.partition("?")[0], safe="/%:@!$&'()*+,;=~")[:_MAX_PATH]


def _content_length(asked: Asked) -> int:
    for name, value in asked.headers:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
