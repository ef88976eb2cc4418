"""How many streams of a file may share a batch on this machine, so that each has the bits that it has alone.

`--batch-exact` keeps to it, and is refused where even a single stream would depend on others.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from corral.core.errors import InvalidRequest
from corral.core.result import BatchExact
from corral.core.settings import EngineSettings
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import read_model
from corral.gguf.preflight import TensorInfo
from corral.llama.hardware import this_cpu, thread_counts, uses_flash_attn, uses_gpu
from corral.llama.library import ggml
from corral.llama.product_probe import WeightSample, probe_product
from corral.llama.repack import repacked_buffer
from corral.llama.row_limit import ANY, TILED, Cpu, Layout, Product, RowLimit, row_limit

_TILED_SWITCH = "GGML_CPU_TILED_MM"  # libllama reads it once, at its first product
_LOOKED_UP = (
    "token_embd.weight",
    "per_layer_token_embd.weight",
    "position_embd.weight",
    "token_types.weight",
)
_EXPERTS = "exps.weight"
_OF_ADAPTERS = ("f32", "f16")
_N_ROWS = 64  # of a sample; it keeps what is left of a tile
_N_TILE = 32
_N_EXPERTS = 4


class Weight(NamedTuple):
    """A weight that is multiplied, the file that it is in, and how libllama may lay it out."""

    path: str
    tensor: TensorInfo
    product: Product
    buffer: int  # that it is repacked into, or 0


def find_exactness(settings: EngineSettings) -> BatchExact:
    """Look the file's weights up, and try them if exactness is kept; raises if it cannot be."""
    is_kept = settings.batch_exact == "on"
    if reason := _exclusion(settings):
        if is_kept:
            raise InvalidRequest(f"--batch-exact cannot be kept: {reason}")
        return BatchExact(reason=reason)
    cpu = this_cpu()
    weights = {each.product: each for each in _weights(settings)}
    if is_kept and cpu.is_x86 and any(_splits_experts(product) for product in weights):
        os.environ[_TILED_SWITCH] = "0"
    limits = {product: row_limit(product, cpu, _is_tiled()) for product in weights}
    if is_kept:
        limits = {product: _tried(weights[product], limits[product], settings) for product in limits}
    return _sum_up(settings, limits, cpu, is_kept)


def samples_of(settings: EngineSettings) -> Iterator[tuple[RowLimit, WeightSample]]:
    """Yield a sample of each kind of weights, and what the table says of it."""
    cpu = this_cpu()
    for product, weight in {each.product: each for each in _weights(settings)}.items():
        yield row_limit(product, cpu, _is_tiled()), _sample(weight)


def _is_tiled() -> bool:
    return os.environ.get(_TILED_SWITCH, "1") != "0"


def _exclusion(settings: EngineSettings) -> str:
    """Return why batches change answers whatever the weights are; empty if they need not."""
    if uses_gpu(settings):
        return (
            "a GPU or an RPC device adds in an order that depends on the batch (--device none uses the CPU)"
        )
    if settings.kv_unified:
        return "with --kv-unified, sums depend on where other sequences are in the buffer (leave it out)"
    if uses_flash_attn(settings):
        return (
            "flash attention on a CPU rounds by the shape of the batch (--batch-exact on does without it, "
            "unless --flash-attn on or a quantized --cache-type-v asks for it)"
        )
    if settings.batch_exact == "off":
        return "--batch-exact off promises nothing"
    return ""


def _weights(settings: EngineSettings) -> Iterator[Weight]:
    parts, headers = read_model(settings.model)
    tensors = [
        (part, *item) for part, header in zip(parts, headers, strict=True) for item in header.tensors.items()
    ]
    is_tied = not any(name == "output.weight" for _, name, _ in tensors)
    is_moved = bool(settings.override_tensor or settings.cpu_moe or settings.n_cpu_moe)
    for path, name, tensor in tensors:
        is_tied_output = is_tied and name == _LOOKED_UP[0]
        if (
            len(tensor.shape) < 2
            or not name.endswith(".weight")
            or (name in _LOOKED_UP and not is_tied_output)
        ):
            continue
        has_experts = name.endswith(_EXPERTS)
        is_flat = len(tensor.shape) == 2 or has_experts
        buffer = repacked_buffer(tensor.type, tensor.shape) if is_flat else 0
        # A table that is also looked up, and weights that options place, may stay as they are.
        for each in {buffer, 0} if is_tied_output or is_moved else {buffer}:
            product = Product(GGML_TYPES[tensor.type].name, _layout(each), has_experts)
            yield Weight(path, tensor, product, each)


def _layout(buffer: int) -> Layout:
    if not buffer:
        return Layout.PLAIN
    name = ggml("ggml_backend_buft_name", ctypes.c_char_p, buffer).decode("utf-8", "replace")
    return Layout(name) if name in (Layout.REPACKED.value, Layout.AMX.value) else Layout.UNKNOWN


def _splits_experts(product: Product) -> bool:
    return product.has_experts and product.layout is Layout.PLAIN and product.type in TILED


def _tried(weight: Weight, limit: RowLimit, settings: EngineSettings) -> RowLimit:
    n_threads, _ = thread_counts(settings)
    return probe_product(_sample(weight), limit, max(settings.n_parallel, 2), n_threads)


def _sample(weight: Weight) -> WeightSample:
    """Read the first rows of a weight, of a few experts if it has any."""
    n_columns, n_all, n_matrices, _ = weight.tensor.ne
    n_rows = min(n_all, _N_ROWS + n_all % _N_TILE)
    n_row_bytes = weight.tensor.n_bytes // (n_all * n_matrices)
    numbers = range(min(n_matrices, _N_EXPERTS) if weight.product.has_experts else 1)
    pieces = [
        np.fromfile(
            weight.path, np.uint8, n_rows * n_row_bytes, offset=weight.tensor.offset + i * n_all * n_row_bytes
        )
        for i in numbers
    ]
    shape = (n_columns, n_rows, len(pieces)) if weight.product.has_experts else (n_columns, n_rows)
    return WeightSample(weight.tensor.type, shape, np.concatenate(pieces), weight.buffer)


def _sum_up(settings: EngineSettings, limits: dict[Product, RowLimit], cpu: Cpu, is_kept: bool) -> BatchExact:
    split = sorted({product.type for product, limit in limits.items() if not limit.splits})
    if split:
        reason = (
            f"prompts that are evaluated in pieces round differently with weights of the type "
            f"{', '.join(split)} on this CPU"
        )
        if is_kept:
            raise InvalidRequest(
                f"--batch-exact cannot be kept with '{settings.model}': {reason}; use another encoding "
                "(--transcode Q8_0), or leave the option out"
            )
        return BatchExact(reason=reason)
    by_type: dict[str, int] = {}
    for product, limit in limits.items():
        if limit.n_rows < ANY:
            by_type[product.type] = min(limit.n_rows, by_type.get(product.type, ANY))
    n_streams = min([settings.n_parallel, *by_type.values()])
    return BatchExact(
        is_on=is_kept,
        n_streams=n_streams,
        n_adapted=min(n_streams, *(row_limit(Product(type), cpu).n_rows for type in _OF_ADAPTERS)),
        limits=dict(sorted(by_type.items())),
    )
