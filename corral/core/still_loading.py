from __future__ import annotations

from corral.core.errors import Unavailable
from corral.core.result import Loading


def still_loading(loading: Loading) -> Unavailable:
    """Return llama-server's error while loading, with stage and progress."""
    progress = round(loading.progress, 3)
    return Unavailable("Loading model", stage=loading.stage.value, progress=progress, detail=loading.detail)
