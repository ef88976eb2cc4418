"""Context sizes: what the settings request, within the limits of the model."""

from __future__ import annotations

from corral.core.settings import EngineSettings
from corral.llama.model import Model

_LEAST = 256  # libllama allocates no smaller context, but would use smaller batches


def total_ctx(settings: EngineSettings, model: Model) -> int:
    """Return the context tokens of all slots together."""
    n_ctx = max(settings.n_ctx, _LEAST) if settings.n_ctx else model.n_ctx_train
    return min(n_ctx, model.n_positions * settings.n_parallel) if model.n_positions else n_ctx


def notes_on_context(settings: EngineSettings, model: Model, n_ctx: int) -> list[str]:
    """Return warnings about `--ctx-size`. `n_ctx`: of one slot, as libllama allocated it."""
    return [*_notes_on_rounding(settings, n_ctx), *_notes_on_training(settings, model)]


def _notes_on_rounding(settings: EngineSettings, n_ctx: int) -> list[str]:
    n_slots = 1 if settings.kv_unified else settings.n_parallel
    if not settings.n_ctx or n_ctx * n_slots <= settings.n_ctx:
        return []
    each = f": {n_ctx} for each of {n_slots} slots" if n_slots > 1 else ""
    return [
        f"--ctx-size {settings.n_ctx} was rounded up to {n_ctx * n_slots}{each}; libllama's contexts "
        f"are multiples of {_LEAST} tokens"
    ]


def _notes_on_training(settings: EngineSettings, model: Model) -> list[str]:
    n_slots = 1 if settings.kv_unified else settings.n_parallel
    n_asked = settings.n_ctx // n_slots
    if n_asked <= model.n_ctx_train:
        return []
    if model.n_positions:
        return [
            f"--ctx-size {settings.n_ctx}: this model has {model.n_positions} positions, which limits "
            "each slot"
        ]
    if not model.turns_positions or _is_scaled(settings):
        return []
    return [
        f"--ctx-size {settings.n_ctx} gives each slot {n_asked} tokens, but the model was trained with "
        f"{model.n_ctx_train}: answers get worse beyond that (--rope-scaling can help)"
    ]


def _is_scaled(settings: EngineSettings) -> bool:
    return bool(
        settings.rope_scaling
        or settings.rope_scale
        or settings.rope_freq_base
        or settings.rope_freq_scale
        or settings.grp_attn_n > 1
    )
