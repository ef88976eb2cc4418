"""What of the machine libllama gets."""

from __future__ import annotations

import os

import psutil

from corral.core.settings import EngineSettings
from corral.llama import library
from corral.llama.cache_type import is_quantized


def thread_counts(settings: EngineSettings) -> tuple[int, int]:
    """For generation, and for prompts."""
    n = settings.n_threads if settings.n_threads > 0 else physical_cores()
    return n, settings.n_threads_batch if settings.n_threads_batch > 0 else n


def draft_thread_counts(settings: EngineSettings) -> tuple[int, int]:
    """The same, for the draft model."""
    n = settings.n_threads_draft if settings.n_threads_draft > 0 else thread_counts(settings)[0]
    return n, settings.n_threads_batch_draft if settings.n_threads_batch_draft > 0 else n


def uses_gpu(settings: EngineSettings) -> bool:
    return settings.n_gpu_layers != 0 and library.has_gpu()


def uses_flash_attn(settings: EngineSettings) -> bool:
    # On a CPU, flash attention rounds differently for every batch shape: the same request would give
    # other tokens depending on what runs beside it. `auto` prefers reproducible answers there.
    # Values of quantized types cannot be read without it.
    is_better = uses_gpu(settings) or is_quantized(settings.cache_type_v)
    return settings.flash_attn == "on" or (settings.flash_attn == "auto" and is_better)


def physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
