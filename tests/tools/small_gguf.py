"""GGUF files of a few bytes, written by hand: whole models as far as a look at their headers can tell."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

_U16, _U32, _STRING = 2, 4, 8
_ALIGNMENT = 32


def small_gguf(
    n_values: int = 1000,
    *,
    seed: int = 0,
    tensors: Sequence[str] = ("blk.0.weight",),
    numbers: Mapping[str, int] | None = None,
    architecture: str = "llama",
    **texts: str,
) -> bytes:
    """Random f32 tensors of this size; `numbers` are keys of 16 bits, `texts` others (a__b for a.b)."""
    keys = [_text("general.architecture") + struct.pack("<I", _STRING) + _text(architecture)]
    keys += [_text(k.replace("__", ".")) + struct.pack("<I", _STRING) + _text(v) for k, v in texts.items()]
    keys += [_text(k) + struct.pack("<IH", _U16, v) for k, v in (numbers or {}).items()]
    stride = -(-n_values * 4 // _ALIGNMENT) * _ALIGNMENT
    infos = [_text(name) + struct.pack("<IQIQ", 1, n_values, 0, i * stride) for i, name in enumerate(tensors)]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys + infos)
    padding = bytes(-len(header) % _ALIGNMENT)
    return header + padding + random.Random(seed).randbytes(stride * len(tensors))


def split_gguf(n: int, *, n_tensors: int | None = None, n_values: int = 1000) -> list[bytes]:
    """A model in parts, with one tensor each."""
    total = n if n_tensors is None else n_tensors
    return [
        small_gguf(
            n_values,
            seed=i,
            tensors=[f"blk.{i}.weight"],
            numbers={"split.no": i, "split.count": n, "split.tensors.count": total},
        )
        for i in range(n)
    ]


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
