"""How many threads libllama gets."""

from __future__ import annotations

import os

import psutil

from corral.core.settings import EngineSettings


def thread_counts(settings: EngineSettings) -> tuple[int, int]:
    """For generation, and for prompts."""
    n = settings.n_threads if settings.n_threads > 0 else physical_cores()
    return n, settings.n_threads_batch if settings.n_threads_batch > 0 else n


def physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
