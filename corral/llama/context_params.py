"""Convert settings of positions and KV cache to libllama's parameters. Uses no handles."""

from __future__ import annotations

import math
from typing import Any

from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.llama.cache_type import is_quantized, type_number
from corral.llama.library import lib

_SCALINGS = {
    "": lib.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    "none": lib.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": lib.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": lib.LLAMA_ROPE_SCALING_TYPE_YARN,
}
_LEAST_SCALE = 1e-3  # libllama's scaled context overflows below this


def context_params(settings: EngineSettings) -> Any:
    """Return libllama's defaults with the settings applied. Raises CorralError if settings contradict each
    other."""
    if settings.flash_attn == "off" and is_quantized(settings.cache_type_v):
        raise CorralError(
            f"--cache-type-v {settings.cache_type_v} needs flash attention: leave --flash-attn at auto or on"
        )
    params = plain_params(settings)
    params.swa_full = settings.swa_full or settings.grp_attn_n > 1  # self-extend moves all of it
    params.type_k = type_number(settings.cache_type_k)
    params.type_v = type_number(settings.cache_type_v)
    params.rope_scaling_type = _SCALINGS[settings.rope_scaling]
    params.rope_freq_base = settings.rope_freq_base
    params.rope_freq_scale = _freq_scale(settings)
    params.yarn_orig_ctx = settings.yarn_orig_ctx
    params.yarn_ext_factor = settings.yarn_ext_factor
    params.yarn_attn_factor = settings.yarn_attn_factor
    params.yarn_beta_slow = settings.yarn_beta_slow
    params.yarn_beta_fast = settings.yarn_beta_fast
    return params


def plain_params(settings: EngineSettings) -> Any:
    """Return the parameters that also apply to other models than the main one."""
    params = lib.llama_context_default_params()
    params.offload_kqv = settings.kv_offload
    params.op_offload = settings.op_offload
    return params


def _freq_scale(settings: EngineSettings) -> float:
    """Return the RoPE frequency scale; 0: the model's own."""
    stretch, scale = settings.rope_scale, settings.rope_freq_scale
    if stretch and scale and not math.isclose(stretch * scale, 1, rel_tol=1e-3):
        raise CorralError(
            f"--rope-scale {stretch:g} and --rope-freq-scale {scale:g} contradict each other: give only one"
        )
    scale = scale or (1 / stretch if stretch else 0.0)
    if scale and not _LEAST_SCALE <= scale <= 1 / _LEAST_SCALE:
        raise CorralError(f"--rope-freq-scale {scale:g}: it must be between 0.001 and 1000")
    if settings.rope_scaling == "none" and scale not in (0.0, 1.0):
        raise CorralError("--rope-scaling none does not scale: omit the scale, or use linear or yarn")
    return scale
