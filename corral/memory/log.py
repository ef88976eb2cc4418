"""Parse the sizes that libllama logs for a model and its contexts. Uses no native handles.

For a model without weights (`is_dry`) libllama logs no sizes of model buffers, so the device of each layer
is parsed, and tensor sizes come from the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from corral.gguf.preflight import TensorInfo
from corral.memory.plan import HOST, Bytes

CopySize: TypeAlias = Callable[
    [TensorInfo], int
]  # size of the repacked weight on a CPU; 0: it is not repacked

_MIB = 1 << 20
_ASSIGNED = re.compile(r"load_tensors: layer +(\d+) assigned to device ([^,]+)")
_LOADED = re.compile(r"loading tensor (\S+)")
_UNUSED = re.compile(r"model has unused tensor (\S+) ")
_CELLS_AT = re.compile(r"layer +\d+: dev = (.+)")
_CELLS = re.compile(r": size = +([\d.]+) MiB \( *\d+ cells")
_BUFFER = re.compile(r"^\w+: +(.+?) +(?:compute|output) buffer size = +([\d.]+) MiB")
_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
_OUTPUT = re.compile(r"output|cls")
_EMBEDDING = "token_embd.weight"
_READ_ROW_BY_ROW = re.compile(r"per_layer_token_embd\.weight")
_LEAST_READ_SO = 4 << 30  # smaller ones are read as a whole


def weight_bytes(
    log: Sequence[str], tensors: Mapping[str, TensorInfo], copy_size: CopySize = lambda _: 0
) -> Bytes:
    """Return the bytes of weights on each device; on the CPU, repacked copies replace the originals."""
    layers = {int(found[1]): found[2] for line in log if (found := _ASSIGNED.search(line))}
    unused = {found[1] for line in log if (found := _UNUSED.search(line))}
    total: Counter[str] = Counter()
    for name, tensor in tensors.items():
        if name not in unused and not _is_left_in_file(name, tensor):
            device = _device_of(name, layers)
            copy = copy_size(tensor) if device == HOST and _is_multiplied(name) else 0
            total[device] += copy or tensor.n_bytes
    at = layers.get(max(layers, default=0), HOST)
    if _is_tied(log) and _EMBEDDING in tensors:
        embedding = tensors[_EMBEDDING]
        total[at] += copy_size(embedding) if at == HOST else embedding.n_bytes
    return dict(total)


def copied_bytes(log: Sequence[str], tensors: Mapping[str, TensorInfo], copy_size: CopySize) -> int:
    """Return the bytes of mapped weights in host memory that are not used, because a copy is."""
    layers = {int(found[1]): found[2] for line in log if (found := _ASSIGNED.search(line))}
    return sum(
        tensor.n_bytes
        for name, tensor in tensors.items()
        if _is_multiplied(name) and _device_of(name, layers) == HOST and copy_size(tensor)
    )


def cache_bytes(log: Sequence[str]) -> Bytes:
    """Return the bytes of a context's cache on each device."""
    total: Counter[str] = Counter()
    at: Counter[str] = Counter()  # layers of the cache that was logged last
    for line in log:
        if found := _CELLS_AT.search(line):
            at[found[1]] += 1
        elif found := _CELLS.search(line):
            n_bytes, n_layers = float(found[1]) * _MIB, at.total()
            for device, n in at.items() or [(HOST, 1)]:
                total[device] += round(n_bytes * n / (n_layers or 1))
            at.clear()
    return dict(total)


def compute_bytes(log: Sequence[str], devices: Sequence[str]) -> Bytes:
    """Return the bytes of a context's compute buffers, on each of these devices and on the host."""
    total: Counter[str] = Counter()
    for line in log:
        if found := _BUFFER.search(line):
            total[_owner(found[1], devices)] += round(float(found[2]) * _MIB)
    return dict(total)


def _device_of(name: str, layers: Mapping[int, str]) -> str:
    found = _LAYER.search(name)
    if found is not None:
        return layers.get(int(found[1]), HOST)
    return layers.get(max(layers, default=0), HOST) if _OUTPUT.match(name) else HOST


def _is_multiplied(name: str) -> bool:
    """Whether a weight is multiplied rather than looked up."""
    return "embd" not in name


def _is_tied(log: Sequence[str]) -> bool:
    """Whether the token embeddings are also the output layer."""
    names = [found[1] for line in log if (found := _LOADED.search(line))]
    return names.count(_EMBEDDING) > 1


def _is_left_in_file(name: str, tensor: TensorInfo) -> bool:
    return bool(_READ_ROW_BY_ROW.match(name)) and tensor.n_bytes > _LEAST_READ_SO


def _owner(buffer: str, devices: Sequence[str]) -> str:
    """Return the device whose memory a buffer type uses; the host also has buffer types named after
    devices."""
    return next((d for d in devices if buffer == d or buffer.startswith((f"{d}[", f"{d}_"))), HOST)
