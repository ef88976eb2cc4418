"""What libllama logs about the memory of a model and of its contexts, as numbers. Knows no native handles.

Of a model without weights (`is_dry`) it tells no sizes of model buffers: which device has which layer is what
counts then, and the file tells how large the tensors are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from corral.gguf.preflight import TensorInfo
from corral.memory.plan import HOST, Bytes

CopySize: TypeAlias = Callable[[TensorInfo], int]  # of the weight that a CPU multiplies; 0: it is no copy

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
    """What the weights take on each device, copies on the CPU in place of what they are copies of."""
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
    """How much of the weights that are used in host memory is not used where the file is mapped."""
    layers = {int(found[1]): found[2] for line in log if (found := _ASSIGNED.search(line))}
    return sum(
        tensor.n_bytes
        for name, tensor in tensors.items()
        if _is_multiplied(name) and _device_of(name, layers) == HOST and copy_size(tensor)
    )


def cache_bytes(log: Sequence[str]) -> Bytes:
    """What a context remembers tokens in, on each device."""
    total: Counter[str] = Counter()
    at: Counter[str] = Counter()  # layers of the cache that is told about
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
    """What a context computes in, on each of these devices and on the host."""
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
    """Tables are looked up in instead."""
    return "embd" not in name


def _is_tied(log: Sequence[str]) -> bool:
    """The embeddings of tokens are the last layer too."""
    names = [found[1] for line in log if (found := _LOADED.search(line))]
    return names.count(_EMBEDDING) > 1


def _is_left_in_file(name: str, tensor: TensorInfo) -> bool:
    return bool(_READ_ROW_BY_ROW.match(name)) and tensor.n_bytes > _LEAST_READ_SO


def _owner(buffer: str, devices: Sequence[str]) -> str:
    """Whose memory a type of buffers is; also the host has some that are named after devices."""
    return next((d for d in devices if buffer == d or buffer.startswith((f"{d}[", f"{d}_"))), HOST)
