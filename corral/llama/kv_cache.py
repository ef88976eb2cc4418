"""Check a model's KV cache settings: libllama would compute garbage or abort."""

from __future__ import annotations

import msgspec
import numpy as np

from corral.core.chunk import Chunk
from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.llama.cache_type import block_size, is_quantized
from corral.llama.context import Context, fill_params
from corral.llama.context_params import context_params
from corral.llama.hardware import thread_counts
from corral.llama.model import Model

_DEFAULT = EngineSettings(model="")
_N_ROTATED = 64  # libllama shifts quantized keys only for heads that it rotates first, in blocks of this size


def fit_cache(settings: EngineSettings, model: Model) -> EngineSettings:
    """Drop cache types for a model without KV cache; raises CorralError if the types do not fit the model."""
    if not model.has_cache:
        return _with_default_types(settings)
    for what, name in (("key", settings.cache_type_k), ("value", settings.cache_type_v)):
        for n in model.head_sizes(what):
            if n % block_size(name):
                raise CorralError(
                    f"--cache-type-{what[0]} {name} comes in blocks of {block_size(name)}, but the heads of"
                    f" this model have {n} {what}s: use f16, bf16 or f32"
                )
    return settings


def can_move_keys(settings: EngineSettings, model: Model) -> bool:
    """Whether keys can be shifted to other positions without loss."""
    if settings.cache_type_k == "bf16":
        return False
    if is_quantized(settings.cache_type_k):
        sizes = model.head_sizes("key")
        if sizes != model.turned_sizes or any(n % _N_ROTATED for n in sizes):
            return False
    return _stays_where_it_is(settings, model)


def _stays_where_it_is(settings: EngineSettings, model: Model) -> bool:
    """Whether a shift by zero changes nothing. It changes keys if positions also scale them, as with YaRN:
    libllama scales the keys of all sequences again."""
    n_threads, n_threads_batch = thread_counts(settings)
    params = fill_params(
        context_params(_with_default_types(settings)),
        n_ctx=1,
        n_seq=1,
        n_batch=1,
        n_ubatch=1,
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
        flash_attn=False,
        kv_unified=False,
    )
    context = Context(model, params)
    context.decode([Chunk(0, 0, np.zeros(1, np.int32), 1)])
    before = bytes(context.save(0) or b"")
    context.move(0, 0, 1, 1)
    context.move(0, 1, 2, 0)
    is_same = context.flush_pending(0) and context.save(0) == before
    context.close()
    return is_same


def _with_default_types(settings: EngineSettings) -> EngineSettings:
    return msgspec.structs.replace(
        settings, cache_type_k=_DEFAULT.cache_type_k, cache_type_v=_DEFAULT.cache_type_v
    )
