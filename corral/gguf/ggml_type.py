"""Tensor types of GGUF files: the values and bytes of a block."""

from __future__ import annotations

from typing import NamedTuple


class GgmlType(NamedTuple):
    """`multiplies`: supported in matrix multiplications; other types hold numbers or intermediate results."""

    name: str
    n_values: int
    n_bytes: int
    multiplies: bool = True


GGML_TYPES = {
    0: GgmlType("f32", 1, 4),
    1: GgmlType("f16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    6: GgmlType("q5_0", 32, 22),
    7: GgmlType("q5_1", 32, 24),
    8: GgmlType("q8_0", 32, 34),
    9: GgmlType("q8_1", 32, 36, multiplies=False),
    10: GgmlType("q2_K", 256, 84),
    11: GgmlType("q3_K", 256, 110),
    12: GgmlType("q4_K", 256, 144),
    13: GgmlType("q5_K", 256, 176),
    14: GgmlType("q6_K", 256, 210),
    15: GgmlType("q8_K", 256, 292, multiplies=False),
    16: GgmlType("iq2_xxs", 256, 66),
    17: GgmlType("iq2_xs", 256, 74),
    18: GgmlType("iq3_xxs", 256, 98),
    19: GgmlType("iq1_s", 256, 50),
    20: GgmlType("iq4_nl", 32, 18),
    21: GgmlType("iq3_s", 256, 110),
    22: GgmlType("iq2_s", 256, 82),
    23: GgmlType("iq4_xs", 256, 136),
    24: GgmlType("i8", 1, 1, multiplies=False),
    25: GgmlType("i16", 1, 2, multiplies=False),
    26: GgmlType("i32", 1, 4, multiplies=False),
    27: GgmlType("i64", 1, 8, multiplies=False),
    28: GgmlType("f64", 1, 8, multiplies=False),
    29: GgmlType("iq1_m", 256, 56),
    30: GgmlType("bf16", 1, 2),
    34: GgmlType("tq1_0", 256, 54),
    35: GgmlType("tq2_0", 256, 66),
    39: GgmlType("mxfp4", 32, 17),
    40: GgmlType("nvfp4", 64, 36),
    41: GgmlType("q1_0", 128, 18),
    42: GgmlType("q2_0", 64, 18),
}
