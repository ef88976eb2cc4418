"""The table of kernels: how many rows of a product keep the bits that each has alone."""

from __future__ import annotations

import pytest

from corral.llama.row_limit import ANY, TILED, Cpu, Layout, Product, RowLimit, row_limit

PLAIN, REPACKED, AMX = Layout.PLAIN, Layout.REPACKED, Layout.AMX
_X86 = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | LLAMAFILE = 1 | CORRAL_PATCH_SET = 4 | REPACK = 1 | "
_ARM = "CPU : NEON = 1 | ARM_FMA = 1 | "
CPUS = {
    "AVX-512": Cpu.parse("x86_64", _X86),
    "prebuilt": Cpu.parse("AMD64", "CPU : AVX2 = 1 | LLAMAFILE = 1 | REPACK = 1 | "),
    "N1": Cpu.parse("aarch64", _ARM + "FP16_VA = 1 | DOTPROD = 1 | LLAMAFILE = 1 | REPACK = 1 | "),
    "A53": Cpu.parse("aarch64", _ARM + "LLAMAFILE = 1 | "),
    "M2": Cpu.parse("arm64", _ARM + "FP16_VA = 1 | DOTPROD = 1 | MATMUL_INT8 = 1 | REPACK = 1 | "),
    "V1": Cpu.parse(
        "aarch64",
        _ARM + "FP16_VA = 1 | MATMUL_INT8 = 1 | SVE = 1 | DOTPROD = 1 | SVE_CNT = 32 | REPACK = 1 | ",
    ),
}
REPACKED_ON_ARM = ("q4_0", "q4_K", "q5_K", "q6_K", "q8_0", "iq4_nl", "mxfp4")


def find(cpu: str, type: str, layout: Layout = PLAIN, **more: bool) -> RowLimit:
    return row_limit(Product(type, layout, more.pop("has_experts", False)), CPUS[cpu], **more)


def test_features_are_read_from_libllamas_line():
    assert CPUS["V1"].features >= {"NEON", "FP16_VA", "MATMUL_INT8", "SVE", "SVE_CNT"}
    assert Cpu.parse("X86_64", "CPU : AVX2 = 0 | FMA = 1 | ") == Cpu("x86_64", frozenset(["FMA"]))


@pytest.mark.parametrize(
    ("cpu", "type", "layout", "n_rows"),
    [
        ("AVX-512", "f32", PLAIN, 7),
        ("AVX-512", "iq4_nl", PLAIN, 7),
        ("AVX-512", "q6_K", PLAIN, 7),
        ("AVX-512", "q4_K", REPACKED, 3),
        ("AVX-512", "q2_K", REPACKED, 3),
        ("AVX-512", "q4_0", REPACKED, ANY),
        ("AVX-512", "q4_1", PLAIN, ANY),
        ("AVX-512", "q8_0", PLAIN, ANY),
        ("AVX-512", "q8_0", AMX, ANY),
        ("prebuilt", "f16", PLAIN, 1),
        ("prebuilt", "q6_K", PLAIN, 7),
        ("N1", "f32", PLAIN, 3),
        ("N1", "f16", PLAIN, 7),
        ("N1", "q8_0", PLAIN, 1),
        ("N1", "q4_1", PLAIN, ANY),
        ("A53", "f16", PLAIN, 1),
        ("A53", "q8_0", PLAIN, ANY),
        ("M2", "f32", PLAIN, ANY),
        ("M2", "q4_1", PLAIN, 1),
        ("V1", "q5_1", PLAIN, ANY),
    ],
)
def test_kinds_of_weights(cpu, type, layout, n_rows):
    assert find(cpu, type, layout).n_rows == n_rows


@pytest.mark.parametrize("cpu", ["N1", "M2", "V1"])
@pytest.mark.parametrize("type", REPACKED_ON_ARM)
def test_what_arm_repacks_goes_three_rows_at_a_time(cpu, type):
    assert find(cpu, type, REPACKED) == RowLimit(3)
    assert find(cpu, type, REPACKED, has_experts=True) == RowLimit(ANY)


@pytest.mark.parametrize("cpu", ["M2", "V1"])
@pytest.mark.parametrize("type", ["q4_0", "q4_1", "q8_0", "q4_K", "q6_K"])
def test_pairs_of_rows_need_an_even_number_so_that_prompts_cannot_be_cut(cpu, type):
    assert find(cpu, type) == RowLimit(1, splits=False)


@pytest.mark.parametrize("type", sorted(TILED))
def test_tiles_depend_on_the_rows_of_an_expert(type):
    assert find("AVX-512", type, has_experts=True) == RowLimit(7, splits=False)
    assert find("AVX-512", type, has_experts=True, is_tiled=False) == RowLimit(ANY)
    assert find("AVX-512", type, is_tiled=False) == RowLimit(ANY)
    assert find("N1", type, has_experts=True) == RowLimit(ANY)


@pytest.mark.parametrize(
    ("machine", "layout"), [("riscv64", PLAIN), ("ppc64le", REPACKED), ("x86_64", Layout.UNKNOWN)]
)
def test_of_unknown_kernels_one_row_at_a_time(machine, layout):
    assert row_limit(Product("q8_0", layout), Cpu(machine, frozenset())) == RowLimit(1)
