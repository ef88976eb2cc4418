"""The GEMM of F16 matrices that native/patches/0004 adds to libllama on AVX-512, by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

PATCH = Path(__file__).parents[2] / "native" / "patches" / "0004-gemm-of-f16-on-avx512.patch"
GAP = 3  # numbers between the columns of a result, which must stay as they are
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "gemm_f16.h"

static void *read_all(size_t n_bytes) {
    void *data = malloc(n_bytes);
    if (fread(data, 1, n_bytes, stdin) != n_bytes) exit(2);
    return data;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int64_t n[6];
    for (int i = 1; i < 6; i++) n[i] = atoll(argv[i]);
    const int64_t n_threads = n[4], ldc = n[1] + n[5];
    gemm_f16::problem p = {n[1], n[2], n[3], 0, n[3], 0, n[3], 0, ldc};
    p.a = (const uint16_t *) read_all(p.m * p.k * 2);
    p.b = (const uint16_t *) read_all(p.n * p.k * 2);
    p.c = (float *) read_all(p.n * ldc * 4);
    for (int64_t i = 0; i < n_threads; i++)
        if (!gemm_f16::multiply(p, i, n_threads)) return 1;
    return fwrite(p.c, 4, p.n * ldc, stdout) != (size_t)(p.n * ldc);
}
"""


def has_avx512() -> bool:
    path = Path("/proc/cpuinfo")
    return path.exists() and " avx512f" in path.read_text()


pytestmark = pytest.mark.skipif(not has_avx512(), reason="needs AVX-512")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gemm_f16")
    added = PATCH.read_text().partition("llamafile/gemm_f16.h\n@@")[2].partition("\ndiff --git")[0]
    lines = [line[1:] for line in added.splitlines() if line.startswith("+")]
    (folder / "gemm_f16.h").write_text("\n".join(lines) + "\n")
    (folder / "main.cpp").write_text(PROGRAM)
    # GCC 12 warns of its own _mm512_undefined_ps in C++.
    flags = (
        "-O2",
        "-march=native",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-uninitialized",
        "-Wno-maybe-uninitialized",
    )
    subprocess.run(["c++", *flags, "main.cpp", "-o", "main"], cwd=folder, check=True)
    return folder / "main"


def multiply(program: Path, a: np.ndarray, b: np.ndarray, n_threads: int = 1) -> np.ndarray | None:
    """All products of the rows of both, one row for each of `b`; None: it cannot do this shape."""
    (m, k), n = a.shape, len(b)
    guard = np.full((n, m + GAP), 7.0, np.float32)
    arguments = (m, n, k, n_threads, GAP)
    result = subprocess.run(
        [program, *map(str, arguments)],
        input=a.tobytes() + b.tobytes() + guard.tobytes(),
        capture_output=True,
    )
    if result.returncode == 1:
        return None
    assert result.returncode == 0
    whole = np.frombuffer(result.stdout, np.float32).reshape(n, m + GAP)
    assert (whole[:, m:] == 7.0).all()
    return whole[:, :m]


def rows(n: int, k: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float16)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(32, 8, 16), (64, 9, 256), (256, 15, 64), (97, 40, 272), (1, 1, 48), (16, 8, 64), (500, 23, 1040)],
)
def test_products_are_what_they_should_be(program, m, n, k):
    a, b = rows(m, k, 1), rows(n, k, 2)
    exact = b.astype(np.float64) @ a.astype(np.float64).T
    allowed = np.abs(b).astype(np.float64) @ np.abs(a).astype(np.float64).T * k * 2.0**-24
    result = multiply(program, a, b)
    assert (np.abs(result - exact) <= allowed).all()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8, 100])
def test_a_result_depends_neither_on_its_neighbours_nor_on_threads(program, n_threads):
    a, b = rows(128, 320, 1), rows(45, 320, 2)
    whole = multiply(program, a, b)
    for m, n in ((128, 1), (128, 13), (40, 45), (17, 8), (1, 45)):
        assert np.array_equal(multiply(program, a[:m], b[:n], n_threads), whole[:n, :m])


@pytest.mark.parametrize("k", [8, 40])
def test_rows_of_other_lengths_are_left_to_others(program, k):
    assert multiply(program, rows(32, k, 1), rows(8, k, 2)) is None


def test_what_is_no_number_stays_where_it_is(program):
    a, b = rows(32, 16, 1), rows(9, 16, 2)
    b[3, 5] = np.nan
    a[7, 2] = np.inf
    result = multiply(program, a, b)
    assert np.isnan(result[3]).all()
    assert not np.isfinite(result[:, 7]).any()
    result = np.delete(np.delete(result, 3, axis=0), 7, axis=1)
    assert np.isfinite(result).all()
