"""Slot files of llama.cpp, written by libllama itself, restored here."""

from __future__ import annotations

import ctypes
import os
import struct

import pytest

from corral.llama.library import lib
from tests.model.llama_harness import LlamaHarness, task
from tests.model.slot_actions import held, refuse_restore, restore, save

SHAPES = [{}, {"n_parallel": 3}, {"n_parallel": 3, "kv_unified": True}]


def slot_file(bench, path, slot: int, is_framed: bool, tokens: list[int] | None = None) -> bytes:
    """What llama-server writes for a slot, today and in earlier versions."""
    tokens = tokens or held(bench, slot)
    words = [-1, 1, len(tokens), *tokens, 0] if is_framed else tokens
    array = (ctypes.c_int32 * len(words))(*words)
    name = os.fsencode(path / "slot.bin")
    assert lib.llama_state_seq_save_file(bench.backend.handle, name, slot, array, len(words))
    return (path / "slot.bin").read_bytes()


@pytest.mark.parametrize("is_framed", [True, False])
@pytest.mark.parametrize("there", SHAPES, ids=["one", "split", "unified"])
@pytest.mark.parametrize("name", ["jamba", "mamba", "llama-bpe"])
def test_a_slot_file_is_continued(models, hybrids, tmp_path, name, there, is_framed):
    path = (models if name == "llama-bpe" else hybrids) / f"{name}.gguf"
    slot = there.get("n_parallel", 1) - 1
    with LlamaHarness(path, **there) as bench:
        bench.run(task(0, bench.prompt(80), id_slot=slot))
        data, tokens = slot_file(bench, tmp_path, slot, is_framed), held(bench, slot)
        more = [*tokens, *bench.prompt(20, seed=1)]
        bench.run(task(1, more, id_slot=slot))
        expected = bench.tokens(1)
    with LlamaHarness(path, n_parallel=2) as bench:
        assert restore(bench, data, 1, is_ours=True).n_tokens == len(tokens)
        bench.run(task(1, more, id_slot=1))
        assert bench.n_cached(1) >= len(tokens) - 4
        assert bench.tokens(1) == expected


def load_natively(bench, path, slot: int) -> list[int]:
    """Read a slot file with libllama itself; return the tokens in it."""
    room, n = (ctypes.c_int32 * 2048)(), ctypes.c_size_t()
    name = os.fsencode(path)
    assert lib.llama_state_seq_load_file(bench.backend.handle, name, slot, room, 2048, ctypes.byref(n))
    words = list(room[: n.value])
    assert (words[:3], words[-1]) == ([-1, 1, len(words) - 4], 0)
    return words[3:-1]


@pytest.mark.parametrize("here", SHAPES, ids=["one", "split", "unified"])
@pytest.mark.parametrize("name", ["jamba", "mamba", "llama-bpe"])
def test_libllama_reads_what_is_saved_here(models, hybrids, tmp_path, name, here):
    path = (models if name == "llama-bpe" else hybrids) / f"{name}.gguf"
    slot = here.get("n_parallel", 1) - 1
    with LlamaHarness(path, **here) as bench:
        bench.run(task(0, bench.prompt(80), id_slot=slot))
        data, tokens = save(bench, slot, is_ggsq=True), held(bench, slot)
        more = [*tokens, *bench.prompt(20, seed=1)]
        bench.run(task(1, more, id_slot=slot))
        expected = bench.tokens(1)
    (tmp_path / "slot.bin").write_bytes(data)
    with LlamaHarness(path) as bench:
        assert load_natively(bench, tmp_path / "slot.bin", 0) == tokens
        back = slot_file(bench, tmp_path, 0, is_framed=True, tokens=tokens)
    assert len(back) == len(data)
    with LlamaHarness(path) as bench:
        restore(bench, back, 0, is_ours=True)
        bench.run(task(1, more))
        assert bench.n_cached(1) >= len(tokens) - 4
        assert bench.tokens(1) == expected


def test_anything_else_is_refused(models, tmp_path):
    with LlamaHarness(models / "llama-bpe.gguf") as bench:
        bench.run(task(0, bench.prompt(40), n_predict=1))
        data, before = slot_file(bench, tmp_path, 0, is_framed=True), held(bench, 0)
        wrong = [
            data[:-1],
            data + b"\0",
            data[:9],
            data[:4] + struct.pack("<I", 2) + data[8:],
            data[:16] + struct.pack("<I", 2) + data[20:],
            data[:24] + struct.pack("<i", 10**6) + data[28:],
            data[:8] + struct.pack("<I", 2**32 - 1) + data[12:],
        ]
        for other in wrong:
            assert refuse_restore(bench, other, is_ours=True).status == 400
            assert held(bench, 0) == before
