"""Signs of life of an engine: whether they have been missing for too long, by a clock.

Knows beats, not processes. Time in which the front itself stood still counts against nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from corral.core.result import Heartbeat

LOOK_S = 0.5  # between two looks
_FIRST_BEAT_S = 30.0  # at least: an interpreter on a busy machine takes a while to start
_SILENT_S = 2.0  # at least
_SILENT_SHARE = 0.25  # of the time after which it is given up
_WEDGE_FACTOR = 50.0
_WEDGE_UNKNOWN_S = 600.0


class HeartbeatMonitor:
    """Mutable: of one engine. Somebody looks every `LOOK_S`."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._heard_at = self._looked_at = clock()
        self._has_beaten = False

    @property
    def is_silent(self) -> bool:
        """Whether it has not been heard for longer than usual, although we listened."""
        now = self._clock()
        silent_s = max(_SILENT_S, _SILENT_SHARE * self._timeout_s)
        return not self._was_away(now) and now - self._heard_at > silent_s

    def on_beat(self, heartbeat: Heartbeat) -> str:
        """A sign of life; returns why the engine has to be given up nevertheless, if it has."""
        self._heard_at = self._clock()
        self._has_beaten = True
        if is_wedged(heartbeat, self._timeout_s):
            return f"a decode has been running for {heartbeat.decode_ms / 1e3:.0f} s"
        return ""

    def check(self) -> str:
        """Why the engine has to be given up, if it has."""
        now = self._clock()
        if self._was_away(now):
            self._heard_at = now  # its beats get time to be read
        self._looked_at = now
        limit_s = self._timeout_s if self._has_beaten else max(_FIRST_BEAT_S, self._timeout_s)
        return f"no sign of life for {limit_s:g} s" if now - self._heard_at > limit_s else ""

    def _was_away(self, now: float) -> bool:
        return now - self._looked_at > 2 * LOOK_S


def is_wedged(heartbeat: Heartbeat, timeout_s: float) -> bool:
    """Whether the decode under way is past anything its predicted cost could explain."""
    if heartbeat.predicted_ms <= 0:
        return heartbeat.decode_ms > _WEDGE_UNKNOWN_S * 1e3
    return heartbeat.decode_ms > max(6 * timeout_s * 1e3, _WEDGE_FACTOR * heartbeat.predicted_ms)
