"""Metadata overrides for a model file (`--override-kv`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from corral.core.errors import CorralError
from corral.core.modifier import Override
from corral.llama.library import lib

_MAX_INT = 2**63 - 1
_USED = re.compile(r"Using metadata override \( *\w+\) '(.*)' =")
_MISTAKEN = re.compile(r"Bad metadata override type for key '(.*)', expected (\w+) but got \w+")


def native_overrides(overrides: Sequence[Override]) -> Any:
    """Build `llama_model_params.kv_overrides`; keep it alive until the model is loaded."""
    array = (lib.llama_model_kv_override * (len(overrides) + 1))()
    for native, override in zip(array, overrides, strict=False):
        native.key = override.key.encode()
        native.tag, field, value = _native_value(override)
        setattr(native.value, field, value)
    return array


def overridden_texts(overrides: Sequence[Override]) -> dict[str, str]:
    """Return the values by key, formatted as libllama formats those of a file."""
    return {o.key: str(o.value).lower() if isinstance(o.value, bool) else str(o.value) for o in overrides}


def check_overrides(overrides: Sequence[Override], log: Sequence[str]) -> None:
    """Raise CorralError for overrides that libllama ignored, according to its log."""
    used = {found[1] for line in log if (found := _USED.search(line))}
    mistaken = {found[1]: found[2] for line in log if (found := _MISTAKEN.search(line))}
    keys = [override.key for override in overrides]
    for override in overrides:
        if keys.count(override.key) > 1:
            raise CorralError(f"--override-kv: '{override.key}' is given more than once")
        if override.key in used:
            continue
        if override.key in mistaken:
            raise CorralError(f"--override-kv: '{override.key}' is of type {mistaken[override.key]}")
        raise CorralError(f"--override-kv: this model does not use '{override.key}'")


def _native_value(override: Override) -> tuple[int, str, Any]:
    value = override.value
    if isinstance(value, bool):
        return lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, "val_bool", value
    if isinstance(value, str):
        return lib.LLAMA_KV_OVERRIDE_TYPE_STR, "val_str", value.encode()
    if isinstance(value, float):
        return lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, "val_f64", value
    if abs(value) > _MAX_INT:
        raise CorralError(f"--override-kv: {value} for '{override.key}' does not fit into 64 bits")
    return lib.LLAMA_KV_OVERRIDE_TYPE_INT, "val_i64", value
