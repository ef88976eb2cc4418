"""`keep_alive`: how long the model stays loaded after a request."""

from __future__ import annotations

import re
from typing import Any

from corral.core.errors import InvalidRequest
from corral.generate.services import Services

_MAX_S = 10.0**9
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"([+-]?)((?:{_PART.pattern})+)")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def parse_keep_alive(value: Any) -> float | None:
    """Return seconds, negative for ever; None: the server decides. A number without a unit is in seconds."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _limit(float(value))
    text = value[:64] if isinstance(value, str) else ""
    if _NUMBER.fullmatch(text):
        return _limit(float(text))
    if not (found := _DURATION.fullmatch(text)):
        raise InvalidRequest("must be a number of seconds, or a duration such as '5m'", field="keep_alive")
    seconds = sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(found[2]))
    return _limit(-seconds if found[1] == "-" else seconds)


def explain_keep_alive(value: Any, services: Services) -> list[str]:
    """Check the field; return a warning if it is ignored: a model of several keys is not one client's to
    unload."""
    if parse_keep_alive(value) is None or not _is_shared(services):
        return []
    return ["Field 'keep_alive' was ignored: several API keys share the model"]


def apply_keep_alive(value: Any, services: Services) -> None:
    """Call this once the tasks of the request are submitted."""
    seconds = parse_keep_alive(value)
    if seconds is not None and not _is_shared(services):
        services.engine.keep_idle(seconds)


def _limit(seconds: float) -> float:
    return -1.0 if seconds < 0 else min(seconds, _MAX_S)


def _is_shared(services: Services) -> bool:
    server = services.settings.server
    return bool(server.api_key_file) or "," in ",".join(server.api_keys)
