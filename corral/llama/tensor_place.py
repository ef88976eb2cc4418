"""Put tensors into other memory than libllama would choose (`--override-tensor`, `--cpu-moe`), by patterns of
their names."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from corral.core.errors import CorralError
from corral.core.modifier import TensorPlace
from corral.core.settings import EngineSettings
from corral.llama.library import ggml

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # compat: llama-server: the same tensors
_CPU = "CPU"


class _NativePlace(ctypes.Structure):
    """`llama_model_tensor_buft_override`, which the bindings lack."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def tensor_places(settings: EngineSettings) -> list[TensorPlace]:
    """Return where tensors are put, the first match decides: what the operator says comes before the
    experts."""
    experts = [TensorPlace(rf"blk\.{i}{_EXPERTS}", _CPU) for i in range(settings.n_cpu_moe)]
    return [*settings.override_tensor, *([TensorPlace(_EXPERTS, _CPU)] if settings.cpu_moe else experts)]


def native_places(places: Sequence[TensorPlace]) -> Any:
    """Build `llama_model_params.tensor_buft_overrides`; keep it alive as long as the model. None: no places.

    Raises CorralError for a kind of memory that no device has."""
    if not places:
        return None
    known = buffer_types()
    array = (_NativePlace * (len(places) + 1))()
    for native, place in zip(array, places, strict=False):
        if place.buffer_type not in known:
            names = ", ".join(known)
            raise CorralError(
                f"--override-tensor: unknown buffer type '{place.buffer_type}'; there are {names}"
            )
        native.pattern, native.buffer_type = place.pattern.encode(), known[place.buffer_type]
    return array


def buffer_types() -> dict[str, int]:
    """Return the kinds of memory that all devices have, by name."""
    n = ggml("ggml_backend_dev_count", ctypes.c_size_t)
    devices = [ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(i)) for i in range(n)]
    found = [ggml("ggml_backend_dev_buffer_type", ctypes.c_void_p, device) for device in devices]
    return {
        ggml("ggml_backend_buft_name", ctypes.c_char_p, one).decode("utf-8", "replace"): one
        for one in found
        if one
    }
