"""libllama's vectors and scores are those of the plain references, for every kind of model and pooling."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from tests.model import bert_reference, decoder_reference
from tests.model.bert_reference import Array, exact_gelu, table_gelu, unit
from tests.tools import tiny_encoders as tiny

N_SEQ = 8
DECLARED, NONE, MEAN, CLS, LAST, RANK = range(-1, 5)
POOLS: dict[int, Callable[[Array], Array]] = {
    NONE: lambda rows: rows,
    MEAN: bert_reference.pool_mean,
    CLS: bert_reference.pool_cls,
    LAST: bert_reference.pool_last,
}
TEXTS = [
    "the cat is in the house",
    "What is the capital of France?",
    "paris is a city; the king walked by the river.",
    "好 zzz!",
    "a",
    "how and why? " * 12,
]
# The first three are in the documentation of sentence-transformers, with the cosines that it prints.
SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "How many people live in Berlin?",
    "Berlin has a population of 3,520,031 registered inhabitants.",
    "A man is eating food.",
    "Crème brûlée, naïve façade – 日本語 & émigré?",
    "def f(x): return x ** 2",
    "New York City is famous for the Metropolitan Museum of Art.",
    "the quick brown fox jumps over the lazy dog " * 8,
]
PUBLISHED_COSINES = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]


@pytest.mark.parametrize("pooling", [DECLARED, *POOLS])
def test_bert_gives_the_vectors_of_the_reference(encoders, pooling):
    path = encoders / "bert-embed.gguf"
    bert = bert_reference.read_bert(path)
    pool = POOLS[MEAN if pooling == DECLARED else pooling]
    for answer in evaluate(path, TEXTS, pooling):
        expected = pool(bert_reference.token_rows(bert, answer.tokens))
        assert distance(answer.values, expected) < 2e-4


@pytest.mark.parametrize(("gelu", "tolerance"), [(exact_gelu, 1e-2), (table_gelu, 1e-3)])
@pytest.mark.parametrize(("name", "n_cls_out"), [("bert-rerank", 1), ("bert-classify", 3)])
def test_bert_gives_the_scores_of_the_reference(encoders, name, n_cls_out, gelu, tolerance):
    path = encoders / f"{name}.gguf"
    bert = replace(bert_reference.read_bert(path), gelu=gelu)
    for answer in evaluate(path, TEXTS):
        expected = bert_reference.class_logits(bert, answer.tokens)
        assert answer.values.shape == (n_cls_out,)
        assert answer.values == pytest.approx(expected, abs=tolerance)


def test_a_decoder_gives_the_row_of_the_eos_behind_the_text(encoders):
    path = encoders / "llama-last.gguf"
    decoder = decoder_reference.read_decoder(path)
    for answer in evaluate(path, TEXTS):
        expected = decoder_reference.token_rows(decoder, answer.tokens)[-1]
        assert answer.tokens[-1] == answer.eos
        assert distance(answer.values, expected) < 1e-5


def test_a_decoder_gives_the_shares_of_yes_and_no(encoders):
    path = encoders / "qwen3-rerank.gguf"
    decoder = decoder_reference.read_decoder(path)
    prompts = [tiny.RERANK.format(query=TEXTS[1], document=document) for document in TEXTS]
    for answer in evaluate(path, prompts):
        expected = decoder_reference.class_probabilities(decoder, answer.tokens)
        assert answer.values == pytest.approx(expected, abs=1e-5)
        assert answer.values.sum() == pytest.approx(1.0)


def test_models_name_their_outputs_and_their_prompt(encoders):
    for name, labels, prompt in [
        ("bert-embed", (None,), None),
        ("bert-rerank", (None,), None),
        ("bert-classify", tiny.LABELS, None),
        ("qwen3-rerank", tiny.RERANK_LABELS, tiny.RERANK),
    ]:
        with opened_model(encoders / f"{name}.gguf") as model:
            assert lib.llama_model_n_cls_out(model) == len(labels)
            given = [lib.llama_model_cls_label(model, i) for i in range(len(labels))]
            assert given == [label and label.encode() for label in labels]
            assert lib.llama_model_chat_template(model, b"rerank") == (prompt and prompt.encode())


def test_minilm_gives_the_vectors_of_the_published_weights(minilm_path):
    answers = evaluate(minilm_path, SENTENCES)
    original = bert_reference.read_original_minilm()
    expected = [bert_reference.token_rows(original, answer.tokens).mean(axis=0) for answer in answers]
    for answer, vector in zip(answers, expected, strict=True):
        assert unit(answer.values) @ unit(vector) >= 0.9999
        assert distance(answer.values, vector) < 2e-3
    published = np.stack([unit(vector) for vector in expected[:3]])
    assert published @ published.T == pytest.approx(np.array(PUBLISHED_COSINES), abs=2e-4)


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
