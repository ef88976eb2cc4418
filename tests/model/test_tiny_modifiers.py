"""The tiny adapters and drafts do what `tests/tools/tiny_modifiers.py` says, with libllama alone."""

from __future__ import annotations

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from tests.model.decoder_reference import read_decoder, token_rows
from tests.model.raw import raw_greedy, raw_logits
from tests.tools.tiny_modifiers import MERGED

PROMPT = [ord(c) for c in "Hello world, that is it"]


@pytest.mark.parametrize("name", MERGED)
def test_an_adapter_is_worth_its_merged_weights(modifiers, name):
    merged = modifiers / f"{name}.gguf"
    tokens = [*PROMPT, *raw_greedy(merged, PROMPT, 60)]
    adapters = [(modifiers / f"{file}.gguf", scale) for file, scale in MERGED[name]]
    adapted = raw_logits(modifiers / "llama-bpe.gguf", tokens, adapters)
    assert np.abs(adapted - raw_logits(merged, tokens)).max() < 1e-3
    assert np.abs(adapted - reference_logits(merged, tokens)).max() < 1e-3


def test_every_file_writes_another_text(modifiers):
    texts = [tuple(raw_greedy(modifiers / f"{name}.gguf", PROMPT, 24)) for name in ["llama-bpe", *MERGED]]
    assert len(set(texts)) == len(texts)


def test_the_model_is_that_of_the_other_tests(models, modifiers):
    assert (modifiers / "llama-bpe.gguf").read_bytes() == (models / "llama-bpe.gguf").read_bytes()


@pytest.mark.parametrize("name", ["lora-other", "lora-shape", "lora-broken", "not-lora"])
def test_what_is_no_adapter_for_the_model_is_refused(modifiers, name):
    model = lib.llama_model_load_from_file(
        str(modifiers / "llama-bpe.gguf").encode(), lib.llama_model_default_params()
    )
    assert not lib.llama_adapter_lora_init(model, str(modifiers / f"{name}.gguf").encode())
    lib.llama_model_free(model)


def test_the_draft_mostly_agrees_on_the_next_token(modifiers):
    tokens = [*PROMPT, *raw_greedy(modifiers / "llama-bpe.gguf", PROMPT, 300)]
    guesses = raw_logits(modifiers / "draft.gguf", tokens).argmax(axis=1)
    is_right = guesses[len(PROMPT) - 1 : -1] == tokens[len(PROMPT) :]
    assert 0.6 < is_right.mean() < 0.9


def test_the_other_draft_has_as_many_tokens_with_other_texts(modifiers):
    texts, others = (token_texts(modifiers / f"{name}.gguf") for name in ("draft", "draft-other-vocab"))
    assert texts == token_texts(modifiers / "llama-bpe.gguf")
    assert len(texts) == len(others)
    assert 50 < sum(text != other for text, other in zip(texts, others, strict=True)) < len(texts) - 256


def reference_logits(path, tokens):
    decoder = read_decoder(path)
    return token_rows(decoder, tokens) @ decoder.weights["output.weight"].T


def token_texts(path):
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    vocab = lib.llama_model_get_vocab(model)
    texts = [lib.llama_vocab_get_text(vocab, i) for i in range(lib.llama_vocab_n_tokens(vocab))]
    lib.llama_model_free(model)
    return texts
