"""Open contexts for measurements."""

from __future__ import annotations

from corral.core.settings import EngineSettings
from corral.llama.context import Context, fill_params
from corral.llama.context_params import context_params
from corral.llama.hardware import flash_attn_type, thread_counts
from corral.llama.kv_cache import fit_cache
from corral.llama.model import Model


def open_context(
    settings: EngineSettings, model: Model, n_ctx: int, n_batch: int, n_seq: int = 1, n_outputs: int = 0
) -> Context:
    """Open a context. `n_outputs`: tokens of a batch that may have logits; 0: as many as a server needs."""
    settings = fit_cache(settings, model)
    n_threads, n_threads_batch = thread_counts(settings)
    params = fill_params(
        context_params(settings),
        n_ctx=n_ctx,
        n_seq=n_seq,
        n_batch=n_batch,
        n_ubatch=min(settings.n_ubatch, n_batch),
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
        flash_attn=flash_attn_type(settings),
        kv_unified=False,
    )
    if n_outputs:
        params.n_outputs_max = n_outputs
    return Context(model, params)
