"""What `tiny_vision.llava_mmproj` makes of a picture, in plain numpy: libmtmd's vectors must agree with it.

A picture is brought to the size of the model as libmtmd does it, to the last bit. The rest is computed in
double precision, but for what libmtmd rounds to half precision on CPUs: what goes into the convolution, and
two activations that it looks up in tables. On ARM it sums the convolution in half precision too, which is not
done here: that moves an element by up to a thousandth of the length of its vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

Array = npt.NDArray[np.floating]
Pixels = npt.NDArray[np.uint8]

PAD_COLOR = (122, 116, 104)
_FRACTION_BITS = 22


@dataclass(frozen=True, slots=True)
class Llava:
    """Tensors by their names, rows are outputs; keys without the `clip.vision.` before them."""

    weights: Mapping[str, Array]
    image_size: int
    patch_size: int
    n_block: int
    n_head: int
    norm_eps: float
    mean: Array
    std: Array


def read_llava(path: Path) -> Llava:
    reader = GGUFReader(path)

    def key(name: str) -> Any:
        field = reader.get_field(f"clip.vision.{name}")
        assert field is not None, name
        return field.contents()

    return Llava(
        {tensor.name: tensor.data.astype(np.float64) for tensor in reader.tensors},
        key("image_size"),
        key("patch_size"),
        key("block_count"),
        key("attention.head_count"),
        key("attention.layer_norm_epsilon"),
        np.array(key("image_mean")),
        np.array(key("image_std")),
    )


def embed_llava(path: Path, rgb: Pixels) -> Array:
    """A vector for each patch, row by row, of a picture of any size: `rgb[y, x]` has three colours."""
    model = read_llava(path)
    pixels = fit(rgb, model.image_size)
    x = _patches(model, (pixels / 255.0 - model.mean) / model.std)
    x = _layer_norm(model, "v.pre_ln", x + model.weights["v.position_embd.weight"])
    for i in range(model.n_block - 1):
        x = x + _attention(model, f"v.blk.{i}", _layer_norm(model, f"v.blk.{i}.ln1", x))
        x = x + _feed_forward(model, f"v.blk.{i}", _layer_norm(model, f"v.blk.{i}.ln2", x))
    return _linear(model, "mm.2", table_gelu(_linear(model, "mm.0", x)))


def fit(rgb: Pixels, size: int) -> Pixels:
    """The picture as large as it fits into a square, in its middle, with `PAD_COLOR` at the sides."""
    height, width = rgb.shape[:2]
    if (height, width) == (size, size):
        return rgb
    scale = min(np.float32(size) / np.float32(width), np.float32(size) / np.float32(height))
    new_height, new_width = (min(int(np.ceil(np.float32(n) * scale)), size) for n in (height, width))
    resized = resize(rgb, new_height, new_width)
    square = np.full((size, size, 3), PAD_COLOR, np.uint8)
    top, left = (size - new_height) // 2, (size - new_width) // 2
    square[top : top + new_height, left : left + new_width] = resized
    return square


def resize(rgb: Pixels, height: int, width: int) -> Pixels:
    """Bicubic as Pillow has it: in fixed point, columns first and rounded to bytes between the two."""
    columns = _resample(rgb.swapaxes(0, 1), width).swapaxes(0, 1)
    return _resample(columns, height)


def table_gelu(x: Array) -> Array:
    """An approximation with tanh, looked up in half precision."""
    half = _half(x)
    value = 0.5 * half * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (half + 0.044715 * half**3)))
    return np.where(np.abs(x) < 10.0, _half(value), np.maximum(x, 0.0))


def table_gelu_quick(x: Array) -> Array:
    """An approximation with a sigmoid, looked up in half precision."""
    half = _half(x)
    return _half(half / (1.0 + np.exp(-1.702 * half)))


def _half(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


def _resample(values: Pixels, n_out: int) -> Pixels:
    """Another number of rows, unless there are as many already."""
    n_in = len(values)
    if n_in == n_out:
        return values
    rows = [_weighted_row(values, (i + 0.5) * n_in / n_out, max(n_in / n_out, 1.0)) for i in range(n_out)]
    return np.stack(rows)


def _weighted_row(values: Pixels, center: float, spread: float) -> Pixels:
    first = max(int(center - 2.0 * spread + 0.5), 0)
    last = min(int(center + 2.0 * spread + 0.5), len(values))
    weights = _cubic((np.arange(first, last) - center + 0.5) / spread)
    weights = weights / weights.sum() * (1 << _FRACTION_BITS)
    fixed = np.trunc(weights + np.copysign(0.5, weights)).astype(np.int64)
    total = np.tensordot(fixed, values[first:last].astype(np.int64), axes=1) + (1 << (_FRACTION_BITS - 1))
    return np.clip(total >> _FRACTION_BITS, 0, 255).astype(np.uint8)


def _cubic(x: Array) -> Array:
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = -0.5 * (((x - 5.0) * x + 8.0) * x - 4.0)
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _patches(model: Llava, pixels: Array) -> Array:
    """A row for each patch: one convolution whose kernels do not overlap."""
    n, size = model.image_size // model.patch_size, model.patch_size
    kernel = model.weights["v.patch_embd.weight"]
    blocks = pixels.reshape(n, size, n, size, 3).transpose(0, 2, 4, 1, 3)
    return _half(blocks.reshape(n * n, -1)) @ _half(kernel.reshape(len(kernel), -1)).T


def _attention(model: Llava, name: str, x: Array) -> Array:
    q, k, v = (_heads(model, _linear(model, f"{name}.attn_{part}", x)) for part in "qkv")
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (shares / shares.sum(axis=-1, keepdims=True)) @ v
    return _linear(model, f"{name}.attn_out", mixed.swapaxes(0, 1).reshape(x.shape))


def _heads(model: Llava, x: Array) -> Array:
    return x.reshape(len(x), model.n_head, -1).swapaxes(0, 1)


def _feed_forward(model: Llava, name: str, x: Array) -> Array:
    return _linear(model, f"{name}.ffn_down", table_gelu_quick(_linear(model, f"{name}.ffn_up", x)))


def _linear(model: Llava, name: str, x: Array) -> Array:
    return x @ model.weights[f"{name}.weight"].T + model.weights[f"{name}.bias"]


def _layer_norm(model: Llava, name: str, x: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt(variance + model.norm_eps)
    return normal * model.weights[f"{name}.weight"] + model.weights[f"{name}.bias"]
