"""What an engine's bits depend on besides its tasks: two engines with equal fingerprints continue each
other's answers exactly."""

from __future__ import annotations

import platform

import msgspec
import xxhash

from corral import __version__
from corral.core.libllama import PATCH_SET, VERSION
from corral.core.settings import EngineSettings
from corral.llama.device import used_devices
from corral.llama.fingerprint import model_fingerprint
from corral.llama.hardware import flash_attn_type, uses_gpu
from corral.llama.library import lib

_PLACES = ("n_gpu_layers", "split_mode", "tensor_split", "cpu_moe", "n_cpu_moe", "kv_offload", "op_offload")
_SHAPES = ("n_ctx", "n_parallel", "n_batch", "n_ubatch", "kv_unified", "grp_attn_n", "grp_attn_w", "swa_full")


def engine_fingerprint(settings: EngineSettings) -> str:
    """Return a name for build, CPU features, model, KV types and everything else that rounding depends on."""
    facts = (
        (__version__, VERSION, PATCH_SET, platform.machine(), lib.llama_print_system_info()),
        model_fingerprint(settings),
        (settings.cache_type_k, settings.cache_type_v, flash_attn_type(settings)),
        [getattr(settings, name) for name in _SHAPES],
        _gpus(settings) if uses_gpu(settings) else [],
    )
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(facts))


def _gpus(settings: EngineSettings) -> list[object]:
    # The description of a remote one is its address, which may change with every start.
    devices = ["RPC" if each.is_remote else each.description for each in used_devices(settings)]
    return [devices, *(getattr(settings, name) for name in _PLACES)]
