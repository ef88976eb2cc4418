"""Control vectors, added to the outputs of layers to steer a model. Read from GGUF files.

A file has a tensor `direction.N` for every layer N that it changes. Layers count from 0; layer 0 is never
changed.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from corral.core.chunk import FloatArray
from corral.core.errors import CorralError, InvalidRequest
from corral.core.modifier import ScaledFile
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.preflight import TensorInfo, read_header
from corral.llama.library import LlamaError, last_words, lib

Directions: TypeAlias = Mapping[int, FloatArray]

_NAME = re.compile(r"direction\.([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class ControlVector:
    """One row per layer except the first, and the range of layers they apply to."""

    rows: FloatArray
    first: int
    last: int

    @classmethod
    def combine(
        cls,
        files: Sequence[tuple[ScaledFile, Directions]],
        n_embd: int,
        n_layer: int,
        layers: tuple[int, int],
    ) -> ControlVector:
        """Sum the files' directions for a model of this size; `layers` of 0: the first and the last."""
        first, last = layers[0] or 1, layers[1] or n_layer
        if not (first <= last <= n_layer and first < n_layer):
            raise CorralError(
                f"--control-vector-layer-range {first} {last}: the model has layers 1 to {n_layer - 1}"
            )
        rows = np.zeros((n_layer - 1, n_embd), np.float32)
        for file, directions in files:
            for layer, values in directions.items():
                if len(values) != n_embd:
                    raise _refusal(
                        file.path, f"it is for a model of width {len(values)}, this one has {n_embd}"
                    )
                if layer >= n_layer:
                    raise _refusal(
                        file.path, f"it has layer {layer}, but the model's last layer is {n_layer - 1}"
                    )
                rows[layer - 1] += np.float32(file.scale) * values
        if rows.any() and not rows[first - 1 : last].any():
            raise CorralError(f"the control vectors have no directions for layers {first} to {last}")
        return cls(rows, first, last)

    def apply(self, context: Any) -> None:
        """Apply from the next decode on; libllama makes a copy."""
        data = self.rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if lib.llama_set_adapter_cvec(
            context, data, self.rows.size, self.rows.shape[1], self.first, self.last
        ):
            raise LlamaError(f"the control vectors cannot be applied: {last_words()}")


def read_directions(path: str) -> Directions:
    """Read a file's directions by layer; raises CorralError if it is not a control vector."""
    try:
        tensors = read_header(path).tensors
        if not tensors:
            raise InvalidRequest("it contains no directions")
        with open(path, "rb") as file:
            return {_layer(name, tensor): _read(file, tensor) for name, tensor in tensors.items()}
    except OSError as error:
        raise _refusal(path, error.strerror or "it cannot be read") from None
    except InvalidRequest as error:
        raise _refusal(path, error.message) from None


def _layer(name: str, tensor: TensorInfo) -> int:
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidRequest(f"'{name}' is not a direction of a layer (direction.1, ...)")
    kind = GGML_TYPES[tensor.type].name
    if kind != "f32" or len(tensor.shape) != 1:
        raise InvalidRequest(f"'{name}' is not a row of f32, but {kind} in {len(tensor.shape)} dimensions")
    return int(found[1])


def _read(file: Any, tensor: TensorInfo) -> FloatArray:
    file.seek(tensor.offset)
    values = np.frombuffer(file.read(tensor.n_bytes), "<f4")
    if not np.isfinite(values).all():
        raise InvalidRequest("not all of its values are finite")
    return values


def _refusal(path: str, reason: str) -> CorralError:
    return CorralError(f"control vector '{path}': {reason}")
