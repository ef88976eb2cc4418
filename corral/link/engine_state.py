from __future__ import annotations

import enum


class EngineState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    SLEEPING = "sleeping"
    WAKING = "waking"
    FAILED = "failed"
