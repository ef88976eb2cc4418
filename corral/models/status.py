"""The state of a model, as llama-server's router shows it."""

from __future__ import annotations

from typing import Any

from corral.models.model import ModelState, ServedModel

_STAGES = ("text_model", "spec_model", "mmproj_model")


def render_status(model: ServedModel, place: int | None = None, tells_why: bool = True) -> dict[str, Any]:
    """Render a state. compat: /models: a model that failed is unloaded, with the failure next to it.

    `tells_why`: with the reason, which may contain paths.
    """
    state, failure = model.state, model.failure
    if state is ModelState.FAILED:
        reason = failure.error.message if failure is not None else "the engine is down"
        retry_s = round(failure.retry_after_s, 1) if failure is not None else 0.0
        return {
            "value": ModelState.UNLOADED.value,
            "failed": True,
            "exit_code": 1,
            **({"reason": reason} if tells_why else {}),
            "retry_after": retry_s,
        }
    status: dict[str, Any] = {"value": state.value}
    if state in (ModelState.LOADING, ModelState.DOWNLOADING):
        loading = model.loading
        progress = {"stages": list(_STAGES), "current": _STAGES[0], "value": round(loading.progress, 3)}
        status["progress"] = {**progress, "stage": loading.stage.value}
    if place is not None:
        status["queue_position"] = place
    return status
