"""How libllama uses this machine: threads, GPUs, flash attention."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence

from corral.core.cpu_set import physical_cores as physical_cores
from corral.core.settings import DEFAULT_UBATCH, EngineSettings
from corral.llama import library
from corral.llama.cache_type import is_quantized
from corral.llama.library import lib
from corral.llama.row_limit import Cpu

_PIECE = 256
_NOT_LOCKED = re.compile(r"failed to mlock|mlock not supported")


def thread_counts(settings: EngineSettings) -> tuple[int, int]:
    """Return threads for generation and for prompts."""
    n = settings.n_threads if settings.n_threads > 0 else physical_cores()
    return n, settings.n_threads_batch if settings.n_threads_batch > 0 else n


def draft_thread_counts(settings: EngineSettings) -> tuple[int, int]:
    """Return the same for the draft model."""
    n = settings.n_threads_draft if settings.n_threads_draft > 0 else thread_counts(settings)[0]
    return n, settings.n_threads_batch_draft if settings.n_threads_batch_draft > 0 else n


def uses_gpu(settings: EngineSettings) -> bool:
    """Whether GPUs are used, or `--rpc` devices: these may be CPUs, but nothing says how they compute."""
    return settings.n_gpu_layers != 0 and settings.devices != ("none",) and library.has_gpu()


def this_cpu() -> Cpu:
    return Cpu.parse(platform.machine(), lib.llama_print_system_info().decode("utf-8", "replace"))


def has_fast_plain_attention(cpu: Cpu) -> bool:
    """Whether single tokens come sooner without flash attention: measured, see bench/measurements.md."""
    return cpu.is_x86 and "AVX512" in cpu.features and "AMX_INT8" not in cpu.features


def uses_flash_attn(settings: EngineSettings) -> bool:
    """`auto`: where it is faster. On CPUs it rounds differently for every batch shape, so not where answers
    are kept exact, and quantized values require it."""
    if settings.flash_attn != "auto":
        return settings.flash_attn == "on"
    if uses_gpu(settings) or is_quantized(settings.cache_type_v):
        return True
    return settings.batch_exact != "on" and not has_fast_plain_attention(this_cpu())


def prompt_piece(settings: EngineSettings, n_ubatch: int) -> int:
    """Return how many prompt tokens are evaluated at once while no stream generates.

    Without flash attention each token is compared with its whole chunk, later tokens included, so chunks
    smaller than usual are faster.
    """
    is_usual = n_ubatch == DEFAULT_UBATCH and not uses_gpu(settings) and not uses_flash_attn(settings)
    return _PIECE if is_usual else n_ubatch


def flash_attn_type(settings: EngineSettings) -> int:
    """Return libllama's number. libllama resolves `auto` itself, since GPUs may lack some head sizes."""
    is_open = settings.flash_attn == "auto" and not is_quantized(settings.cache_type_v)
    if is_open and uses_flash_attn(settings):
        return int(lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
    return int(uses_flash_attn(settings))


def notes_on_gpu(settings: EngineSettings) -> list[str]:
    """Warn about GPU options on a machine without a GPU."""
    if settings.devices == ("none",) or library.has_gpu():
        return []
    layers = {"--n-gpu-layers": settings.n_gpu_layers}
    if settings.model_draft:
        layers["--spec-draft-ngl"] = settings.n_gpu_layers_draft
    return [
        f"{name} {'all' if n < 0 else n} has no effect: libllama sees no GPU, all layers are on the CPU "
        "(`corral doctor` may know why)"
        for name, n in layers.items()
        if n not in (0, -1)
    ]


def notes_on_locking(log: Sequence[str]) -> list[str]:
    """Warn about what `--mlock` could not lock, according to libllama's log."""
    if not any(_NOT_LOCKED.search(line) for line in log):
        return []
    return [
        "--mlock: the system does not allow locking the whole model in memory; run `ulimit -l "
        "unlimited` before the start (LimitMEMLOCK=infinity for systemd, --ulimit memlock=-1 for "
        "docker)"
    ]
