"""Detect missing heartbeats of an engine.

Knows beats and a clock, not processes. Time in which the front itself was stalled does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from corral.core.result import Heartbeat

LOOK_S = 0.5  # between two checks
_FIRST_BEAT_S = 30.0  # at least: on a busy machine an interpreter starts slowly
_SILENT_S = 2.0  # at least
_SILENT_SHARE = 0.25  # of the time after which the engine is killed
_WEDGE_FACTOR = 50.0
_WEDGE_UNKNOWN_S = 600.0


class HeartbeatMonitor:
    """Monitors one engine; `check` is called every `LOOK_S`."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._heard_at = self._looked_at = clock()
        self._has_beaten = False

    @property
    def is_silent(self) -> bool:
        """Whether no beat was received for longer than usual, although the front was listening."""
        now = self._clock()
        silent_s = max(_SILENT_S, _SILENT_SHARE * self._timeout_s)
        return not self._was_away(now) and now - self._heard_at > silent_s

    def on_beat(self, heartbeat: Heartbeat) -> str:
        """Record a heartbeat. Returns why the engine must be killed nevertheless, or ""."""
        self._heard_at = self._clock()
        self._has_beaten = True
        if is_wedged(heartbeat, self._timeout_s):
            return f"a decode has been running for {heartbeat.decode_ms / 1e3:.0f} s"
        return ""

    def check(self) -> str:
        """Return why the engine must be killed, or ""."""
        now = self._clock()
        if self._was_away(now):
            self._heard_at = now  # leave time to read the queued beats
        self._looked_at = now
        limit_s = self._timeout_s if self._has_beaten else max(_FIRST_BEAT_S, self._timeout_s)
        return f"no sign of life for {limit_s:g} s" if now - self._heard_at > limit_s else ""

    def _was_away(self, now: float) -> bool:
        return now - self._looked_at > 2 * LOOK_S


def is_wedged(heartbeat: Heartbeat, timeout_s: float) -> bool:
    """Whether the running decode takes far longer than predicted."""
    if heartbeat.predicted_ms <= 0:
        return heartbeat.decode_ms > _WEDGE_UNKNOWN_S * 1e3
    return heartbeat.decode_ms > max(6 * timeout_s * 1e3, _WEDGE_FACTOR * heartbeat.predicted_ms)
