"""Render the loaded model as the Messages API lists models."""

from __future__ import annotations

from typing import Any

from corral.api.shared.timestamp import timestamp
from corral.core.result import ModelInfo


def render_model(name: str, info: ModelInfo | None, started_at: int, max_predict: int) -> dict[str, Any]:
    """`max_predict`: the maximum tokens of any answer; negative: no limit. Sizes are unknown until the
    model is loaded."""
    n_ctx = info.n_ctx if info is not None else None
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": timestamp(started_at),
        "lifecycle": "active",
        "max_input_tokens": n_ctx,
        "max_tokens": max_predict if max_predict >= 0 else n_ctx,
    }
