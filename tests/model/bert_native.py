"""Embeddings straight from libllama, to compare with the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

from tests.model.bert_reference import Array

N_SEQ = 8

DECLARED, NONE, MEAN, CLS, LAST, RANK = range(-1, 5)
TEXTS = [
    "the cat is in the house",
    "What is the capital of France?",
    "paris is a city; the king walked by the river.",
    "好 zzz!",
    "a",
    "how and why? " * 12,
]


def distance(values: Array, expected: Array) -> float:
    """The largest difference of one element, of vectors that are brought to length one."""
    lengths = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (values, expected))
    return float(np.abs(values / next(lengths) - expected / next(lengths)).max())


@dataclass(frozen=True, slots=True)
class Answer:
    """What libllama gave for one text: a vector, scores, or a row for each token."""

    tokens: list[int]
    values: Array
    eos: int


def evaluate(path: Path, texts: Sequence[str], pooling: int = DECLARED) -> list[Answer]:
    """Every text in a sequence of its own, as many as there are sequences in one decode."""
    with opened_model(path) as model, opened_context(model, pooling) as context:
        vocab = lib.llama_model_get_vocab(model)
        eos = lib.llama_vocab_eos(vocab)
        inputs = [tokenize(vocab, text) for text in texts]
        values: list[Array] = []
        for start in range(0, len(inputs), N_SEQ):
            values += decode(model, context, inputs[start : start + N_SEQ])
        return [Answer(tokens, row, eos) for tokens, row in zip(inputs, values, strict=True)]


def decode(model: Any, context: Any, inputs: Sequence[Sequence[int]]) -> list[Array]:
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    n_tokens = sum(map(len, inputs))
    batch = lib.llama_batch_init(n_tokens, 0, 1)
    places = ((seq, pos, token) for seq, tokens in enumerate(inputs) for pos, token in enumerate(tokens))
    for i, (seq, pos, token) in enumerate(places):
        batch.token[i], batch.pos[i], batch.logits[i] = token, pos, True
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
    batch.n_tokens = n_tokens
    assert lib.llama_decode(context, batch) == 0
    lib.llama_batch_free(batch)
    pooling = lib.llama_pooling_type(context)
    n_values = lib.llama_model_n_cls_out(model) if pooling == RANK else lib.llama_model_n_embd(model)
    if pooling != NONE:
        return [floats(lib.llama_get_embeddings_seq(context, seq), n_values) for seq in range(len(inputs))]
    rows = np.stack([floats(lib.llama_get_embeddings_ith(context, i), n_values) for i in range(n_tokens)])
    return np.split(rows, np.cumsum([len(tokens) for tokens in inputs])[:-1])


def floats(pointer: Any, n: int) -> Array:
    return np.ctypeslib.as_array(pointer, shape=(n,)).copy()


def tokenize(vocab: Any, text: str) -> list[int]:
    data = text.encode()
    tokens = (ctypes.c_int32 * (len(data) + 2))()
    n = lib.llama_tokenize(vocab, data, len(data), tokens, len(tokens), True, True)
    assert n >= 0
    return tokens[:n]


@contextmanager
def opened_model(path: Path) -> Iterator[Any]:
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    assert model
    yield model
    lib.llama_model_free(model)


@contextmanager
def opened_context(model: Any, pooling: int) -> Iterator[Any]:
    """In full precision: flash attention and the cache would round keys and values to F16."""
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 1024
    params.n_seq_max = N_SEQ
    params.kv_unified = params.embeddings = True
    params.pooling_type = pooling
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = params.type_k = params.type_v = 0
    context = lib.llama_init_from_model(model, params)
    assert context
    yield context
    lib.llama_free(context)
