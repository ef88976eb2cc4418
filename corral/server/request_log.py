"""One log line for every HTTP request that has ended, however it did, without query, headers and bodies.

Requests for files of a page and health checks are logged at DEBUG.
"""

from __future__ import annotations

import logging
import urllib.parse
from typing import Any

from starlette.types import Scope

from corral.core.visit import Leg, Visit

_MAX_PATH = 256
_MAX_CLIENT = 64
_LINE = (
    "%(method)s %(path)s %(status)d in %(ms).1f ms, %(request_bytes)d bytes in, "
    "%(response_bytes)d out, %(client)s"
)
# Of what the engine has done, by the field that tells it.
_WORK = {
    "queue_ms": "; %(queue_ms).1f ms queued",
    "prompt_n": ", prompt %(prompt_n)d tokens in %(prompt_ms).1f ms",
    "prompt_per_second": " (%(prompt_per_second).1f tokens/s)",
    "cache_n": ", %(cache_n)d cached (%(cache)s)",
    "predicted_n": ", generated %(predicted_n)d tokens in %(predicted_ms).1f ms",
    "predicted_per_second": " (%(predicted_per_second).1f tokens/s)",
}
_PROBES = ("/health", "/v1/health", "/ready")
_ANSWERED = (200, 503)  # what a probe gets that may ask
_log = logging.getLogger("corral")


class RequestLog:
    """A `Listener` of all traffic."""

    def end(self, scope: Scope, visit: Visit) -> None:
        level = logging.DEBUG if _is_file(scope, visit) or _is_probe(scope, visit) else logging.INFO
        if not _log.isEnabledFor(level):
            return
        work = _work(visit)
        text = _LINE + (", key %(key)s" if visit.client.name else "") + ", %(id)s"
        text += "".join(part for name, part in _WORK.items() if name in work)
        _log.log(level, text, {**_fields(scope, visit), **work})


def _is_file(scope: Scope, visit: Visit) -> bool:
    """No route was found for it, and yet an answer."""
    is_read = scope["method"] in ("GET", "HEAD")
    return is_read and "endpoint" not in scope and 0 < visit.status < 400


def _is_probe(scope: Scope, visit: Visit) -> bool:
    """A health check, which comes every few seconds; one that was refused is worth a line."""
    return scope["method"] in ("GET", "HEAD") and scope["path"] in _PROBES and visit.status in _ANSWERED


def _fields(scope: Scope, visit: Visit) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "id": visit.id,
        "key": visit.client.name,
        "method": scope["method"],
        "path": _path(scope),
        "status": visit.status,
        "ms": round((visit.ended_at - visit.started_at) * 1e3, 1),
        "client": str(client[0])[:_MAX_CLIENT] if client else "unix",
        "request_bytes": _content_length(scope),
        "response_bytes": visit.n_bytes,
    }


def _work(visit: Visit) -> dict[str, Any]:
    """What the engine has done for it, of several tasks all together; nothing that it has not done."""
    legs = [leg for leg in visit.legs if leg.admitted_at]
    if not legs:
        return {}
    queue_ms = round(max(leg.queue_s for leg in legs) * 1e3, 1)
    timings = [leg.timings for leg in legs if leg.timings is not None]
    if not timings:
        return {"queue_ms": queue_ms, **_embedding(legs)}
    return {
        "queue_ms": queue_ms,
        **_rate("prompt", sum(t.prompt_n for t in timings), sum(t.prompt_ms for t in timings)),
        "cache": legs[0].tier.value,
        "cache_n": sum(t.cache_n for t in timings),
        **_rate("predicted", sum(t.predicted_n for t in timings), sum(t.predicted_ms for t in timings)),
    }


def _embedding(legs: list[Leg]) -> dict[str, Any]:
    """Of tasks that generate nothing, once they are done."""
    done = [leg for leg in legs if leg.is_done]
    took_ms = sum(leg.ended_at - leg.admitted_at for leg in done) * 1e3
    return _rate("prompt", sum(leg.n_prompt for leg in done), took_ms)


def _rate(what: str, n: int, ms: float) -> dict[str, Any]:
    """Tokens, the time they took, and how many that is per second, as far as there are any."""
    fields: dict[str, Any] = {f"{what}_n": n, f"{what}_ms": round(ms, 1)} if n else {}
    return {**fields, f"{what}_per_second": round(n / ms * 1e3, 1)} if n and ms > 0 else fields


def _path(scope: Scope) -> str:
    """As it was sent: whatever could end a line is still encoded."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw is not None else scope["path"]
    return urllib.parse.quote(path.partition("?")[0], safe="/%:@!$&'()*+,;=~")[:_MAX_PATH]


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
