"""One log line for every HTTP request that has ended, however it did, without query, headers and bodies.

Of files that a page is made of only those hear who want to hear everything.
"""

from __future__ import annotations

import logging
import urllib.parse
from typing import Any

from starlette.types import Scope

from corral.core.visit import Visit

_MAX_PATH = 256
_MAX_CLIENT = 64
_LINE = (
    "%(method)s %(path)s %(status)d in %(ms).1f ms, %(request_bytes)d bytes in, "
    "%(response_bytes)d out, %(client)s"
)
_WORK = (
    "; %(queue_ms).1f ms queued, %(prompt_n)d tokens in %(prompt_ms).1f ms and %(cache_n)d cached "
    "(%(cache)s), %(predicted_n)d generated in %(predicted_ms).1f ms"
)
_log = logging.getLogger("corral")


class RequestLog:
    """A `Listener` of all traffic."""

    def end(self, scope: Scope, visit: Visit) -> None:
        level = logging.DEBUG if _is_file(scope, visit) else logging.INFO
        if not _log.isEnabledFor(level):
            return
        text = _LINE + (", key %(key)s" if visit.client.name else "") + ", %(id)s"
        work = _work(visit)
        _log.log(level, text + (_WORK if work else ""), {**_fields(scope, visit), **work})


def _is_file(scope: Scope, visit: Visit) -> bool:
    """No route was found for it, and yet an answer."""
    is_read = scope["method"] in ("GET", "HEAD")
    return is_read and "endpoint" not in scope and 0 < visit.status < 400


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
    """What the engine has done for it; of several orders, all together."""
    legs = [leg for leg in visit.legs if leg.admitted_at]
    if not legs:
        return {}
    timings = [leg.timings for leg in legs if leg.timings is not None]
    return {
        "queue_ms": round(max(leg.queue_s for leg in legs) * 1e3, 1),
        "cache": legs[0].tier.value,
        "cache_n": sum(timing.cache_n for timing in timings),
        "prompt_n": sum(timing.prompt_n for timing in timings),
        "prompt_ms": round(sum(timing.prompt_ms for timing in timings), 1),
        "predicted_n": sum(timing.predicted_n for timing in timings),
        "predicted_ms": round(sum(timing.predicted_ms for timing in timings), 1),
    }


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
