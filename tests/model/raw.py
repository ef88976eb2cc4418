"""Greedy generation with libllama alone, as simple as it can be: what the engine must agree with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib


def raw_greedy(
    model: Path, prompt: Sequence[int], n_predict: int, n_ctx: int = 512, n_keep: int = 0, n_discard: int = 0
) -> list[int]:
    """The prompt in one decode, then one token each; a full context loses `n_discard` behind `n_keep`."""
    generated: list[int] = []
    with _open(model, n_ctx) as (context, n_vocab):
        memory = lib.llama_get_memory(context)
        pending = list(prompt)
        while len(generated) < n_predict:
            if lib.llama_memory_seq_pos_max(memory, 0) + 2 >= n_ctx:
                lib.llama_memory_seq_rm(memory, 0, n_keep, n_keep + n_discard)
                lib.llama_memory_seq_add(memory, 0, n_keep + n_discard, -1, -n_discard)
            tokens = (ctypes.c_int32 * len(pending))(*pending)
            assert lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(pending))) == 0
            logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(n_vocab,))
            pending = [int(logits.argmax())]
            generated += pending
    return generated


@contextmanager
def _open(path: Path, n_ctx: int) -> Iterator[tuple[Any, int]]:
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 0
    context = lib.llama_init_from_model(model, params)
    assert lib.llama_n_ctx(context) == n_ctx
    yield context, lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    lib.llama_free(context)
    lib.llama_model_free(model)
