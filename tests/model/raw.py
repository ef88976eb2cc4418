"""Logits and greedy generation with libllama alone, as simple as can be: what the engine must agree with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

CLOSE = 1e-3  # of log probabilities in F32: sums in another order


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


def raw_logits(
    model: Path,
    tokens: Sequence[int],
    adapters: Sequence[tuple[Path, float]] = (),
    cache_type: int = lib.GGML_TYPE_F32,
) -> npt.NDArray[np.float32]:
    """A row behind each token, all in one decode, with adapters at their scales."""
    with _open(model, 512, type_k=cache_type, type_v=cache_type) as (context, n_vocab):
        _apply(context, adapters)
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert lib.llama_decode(context, batch) == 0
        lib.llama_batch_free(batch)
        return np.ctypeslib.as_array(lib.llama_get_logits(context), shape=(len(tokens), n_vocab)).copy()


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def known_log_probs(logits: npt.NDArray[np.float32], tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """Of each of these tokens but the first, from the rows behind all of them."""
    return log_softmax(logits)[np.arange(len(tokens) - 1), tokens[1:]]


def rounding(model: Path, tokens: Sequence[int]) -> float:
    """How far log probabilities of these tokens may be apart because of the types of weights and cache.

    Another kernel, or another shape of the batch, changes the last bit of a sum, and with it some keys and
    values in F16 and activations in 8 bits. This measures what happens if all of them change: the cache is in
    F16 instead of F32.
    """
    exact, rounded = (
        known_log_probs(raw_logits(model, tokens, cache_type=cache_type), tokens)
        for cache_type in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16)
    )
    return CLOSE + 4 * float(np.abs(exact - rounded).max())


def _apply(context: Any, adapters: Sequence[tuple[Path, float]]) -> None:
    model, n = lib.llama_get_model(context), len(adapters)
    loaded = [lib.llama_adapter_lora_init(model, str(path).encode()) for path, _ in adapters]
    assert all(loaded), adapters
    handles = (lib.llama_adapter_lora_p_ctypes * n)(*loaded)
    scales = (ctypes.c_float * n)(*(scale for _, scale in adapters))
    assert lib.llama_set_adapters_lora(context, handles, n, scales) == 0


@contextmanager
def _open(path: Path, n_ctx: int, **options: Any) -> Iterator[tuple[Any, int]]:
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 0
    for name, value in options.items():
        setattr(params, name, value)
    context = lib.llama_init_from_model(model, params)
    assert lib.llama_n_ctx(context) == n_ctx
    yield context, lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    lib.llama_free(context)
    lib.llama_model_free(model)
