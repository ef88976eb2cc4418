"""libllama's vectors and scores are those of the plain references, for every kind of model and pooling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from tests.model import bert_reference, decoder_reference
from tests.model.bert_native import (
    CLS,
    DECLARED,
    LAST,
    MEAN,
    NONE,
    TEXTS,
    distance,
    evaluate,
    opened_model,
)
from tests.model.bert_reference import Array, exact_gelu, table_gelu, unit
from tests.tools import tiny_encoders as tiny

POOLS: dict[int, Callable[[Array], Array]] = {
    NONE: lambda rows: rows,
    MEAN: bert_reference.pool_mean,
    CLS: bert_reference.pool_cls,
    LAST: bert_reference.pool_last,
}
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
