"""How many rows of a product with weights have, on a CPU, the bits that each row has alone: a table.

libllama's CPU kernels for more rows add the same numbers in another order. Where they begin depends on the
type of the weights, on their layout in memory, on the instruction set and on the build. Each entry names the
place in ggml's source; `product_probe` tries what the table says with the weights of the file.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

ANY = 1 << 16  # no kernel depends on the number of rows

_FLOATS = frozenset(("f32", "f16", "bf16"))
# Kernels that add integers of a block first, and blocks in the order of the single-row kernel.
_BLOCKS = frozenset(("q4_0", "iq4_nl", "mxfp4"))
_K_QUANTS = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K")
_I_QUANTS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs")
# ggml-cpu/tiled/tiled.cpp: from 8 rows on, also of one expert. GGML_CPU_TILED_MM=0 turns it off.
TILED = frozenset((*_K_QUANTS, *_I_QUANTS))
_PAIRED = frozenset(("q4_0", "q4_1", "q8_0", "q4_K", "q6_K"))  # ggml-cpu.c: `nrows = 2` with i8mm


class Layout(enum.Enum):
    """Where libllama puts a weight for its products: as in the file, or in a layout for this CPU."""

    PLAIN = "plain"
    REPACKED = "CPU_REPACK"
    AMX = "AMX"
    UNKNOWN = "unknown"


class Cpu(NamedTuple):
    """`features`: what libllama was built for, by the names of `llama_print_system_info`."""

    machine: str
    features: frozenset[str]

    @classmethod
    def parse(cls, machine: str, system_info: str) -> Cpu:
        pairs = (part.rsplit(":", 1)[-1].split("=") for part in system_info.split("|") if "=" in part)
        return cls(machine.lower(), frozenset(name.strip() for name, value in pairs if value.strip() != "0"))

    @property
    def is_x86(self) -> bool:
        return self.machine in ("x86_64", "amd64")

    @property
    def is_arm(self) -> bool:
        return self.machine in ("aarch64", "arm64")


class Product(NamedTuple):
    """A kind of product with weights. `has_experts`: each row is multiplied with experts of its own."""

    type: str
    layout: Layout = Layout.PLAIN
    has_experts: bool = False


class RowLimit(NamedTuple):
    """`n_rows`: up to so many rows each has the bits that it has alone. `splits`: a prompt has the same
    bits in one piece and in several, cut at multiples of 4 and of at least 8 tokens."""

    n_rows: int
    splits: bool = True


def row_limit(product: Product, cpu: Cpu, is_tiled: bool = True) -> RowLimit:
    """Look up a kind of product. `is_tiled`: tiled kernels are on, as is usual."""
    if product.layout is Layout.UNKNOWN or not (cpu.is_x86 or cpu.is_arm):
        return RowLimit(1)
    if product.layout is Layout.AMX:
        return RowLimit(ANY)  # amx/mmq.cpp: integers of a block, then blocks in order, in both kernels
    if product.has_experts:
        return _expert_limit(product, cpu, is_tiled)
    if product.layout is Layout.REPACKED:
        # repack.cpp, forward_mul_mat: four rows or more are quantized and multiplied together.
        return RowLimit(ANY if cpu.is_x86 and product.type in _BLOCKS else 3)
    return _x86_limit(product.type, cpu, is_tiled) if cpu.is_x86 else _arm_limit(product.type, cpu)


def _expert_limit(product: Product, cpu: Cpu, is_tiled: bool) -> RowLimit:
    """How many rows an expert gets depends on all rows, so a kernel for many of them also splits prompts."""
    is_plain = product.layout is Layout.PLAIN
    if is_plain and cpu.is_x86 and is_tiled and product.type in TILED:
        return RowLimit(7, splits=False)
    return RowLimit(ANY)  # mul_mat_id, also repacked: one row after the other


def _x86_limit(type: str, cpu: Cpu, is_tiled: bool) -> RowLimit:
    if type in TILED:
        return RowLimit(7 if is_tiled else ANY)
    if "LLAMAFILE" in cpu.features and type in (*_FLOATS, "iq4_nl"):
        # llamafile/sgemm.cpp; of eight rows with our patch 0003, of two without
        return RowLimit(7 if "CORRAL_PATCH_SET" in cpu.features else 1)
    return RowLimit(ANY)


def _arm_limit(type: str, cpu: Cpu) -> RowLimit:
    has_sgemm = "LLAMAFILE" in cpu.features  # ggml-cpu.c leaves it out of builds with i8mm or SVE
    if has_sgemm and type == "f32":
        return RowLimit(3)
    if has_sgemm and type == "f16":
        return RowLimit(7 if "FP16_VA" in cpu.features else 1)
    if has_sgemm and type in ("q4_0", "q8_0") and "DOTPROD" in cpu.features:
        return RowLimit(1)
    if type in _PAIRED and "MATMUL_INT8" in cpu.features:
        return RowLimit(1, splits=False)  # two rows at once, but only if their number is even
    return RowLimit(ANY)
