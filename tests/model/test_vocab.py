"""Text to tokens and back, on vocabularies of both kinds, as the front has them: like libllama."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.cli.default_model import find_default_model
from corral.llama.model import Model
from corral.text.vocab import Vocab

BPE, SPM = "llama-bpe", "llama-spm"
CONTROLS = {BPE: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], SPM: ["<s>", "</s>"]}
ALL_CONTROLS = [(name, text) for name, texts in CONTROLS.items() for text in texts]
STACK_BYTES = 256 << 20
N_LONG = 300_000

few_examples = settings(max_examples=200, deadline=None, derandomize=True, database=None)
names = st.sampled_from([BPE, SPM])
# SentencePiece writes a space as ▁ and cannot tell the two apart.
texts = st.text(st.characters(codec="utf-8", exclude_characters="▁"))


@pytest.fixture(scope="module")
def vocabs(models):
    opened = {name: Model.open(str(models / f"{name}.gguf"), vocab_only=True) for name in (BPE, SPM)}
    yield {name: vocab_of(model) for name, model in opened.items()}
    for model in opened.values():
        model.close()


def vocab_of(model: Model) -> Vocab:
    return Vocab(model.vocab.table(model.chat_templates), model.vocab.tokenize_all)


def all_vocabularies(*directories: Path) -> list[Path]:
    files = {path.name: path for directory in directories for path in directory.glob("*.gguf")}
    return [path for path in files.values() if not path.name.startswith(("mmproj", "lora"))]


def test_the_front_has_every_token_as_libllama_has_it(models, encoders, minilm_path):
    default = find_default_model()
    assert default is not None
    for path in (*all_vocabularies(models, encoders), minilm_path, default):
        model = Model.open(str(path), vocab_only=True)
        native, ours = model.vocab, vocab_of(model)
        tokens = range(-2, native.n_tokens + 2)
        for special in (False, True):
            pieces = [native.piece(token, special) for token in tokens]
            assert [ours.piece(token, special) for token in tokens] == pieces, path
        assert ours.max_piece_bytes == max(map(len, pieces))
        assert ours.n_tokens == native.n_tokens
        controls = [token for token in range(native.n_tokens) if native.is_control(token)]
        assert [token for token in tokens if ours.is_control(token)] == controls, path
        assert ours.control_texts == [native.piece(token, True).decode() for token in controls], path
        assert (ours.eog_tokens, ours.adds_bos, ours.bos) == (native.eog_tokens, native.adds_bos, native.bos)
        assert ours.detokenize([*tokens]) == native.detokenize([*tokens])
        assert [ours.token_of(text) for text in ours.control_texts] == [
            native.token_of(text) for text in ours.control_texts
        ]
        assert ours.chat_templates == model.chat_templates
        model.close()


@given(names, texts)
@few_examples
def test_text_comes_back(vocabs, name, text):
    vocab = vocabs[name]
    tokens = vocab.tokenize(text, False, False)
    prefix = " " if name == SPM and text else ""
    assert vocab.detokenize(tokens) == prefix + text
    assert all(0 <= token < vocab.n_tokens for token in tokens)


@given(names, st.lists(st.integers(0, 300), max_size=40))
@few_examples
def test_any_tokens_are_text(vocabs, name, tokens):
    vocab = vocabs[name]
    pieces = b"".join(vocab.piece(token, special=True) for token in tokens)
    assert vocab.detokenize(tokens) == pieces.decode("utf-8", "replace")
    assert all(len(vocab.piece(token)) <= vocab.max_piece_bytes for token in tokens)


@given(names, texts, st.booleans())
@few_examples
def test_special_tokens_are_added_only_where_asked_for(vocabs, name, text, parse_special):
    vocab = vocabs[name]
    plain = vocab.tokenize(text, False, parse_special)
    bos = [1] if name == SPM else []
    assert vocab.tokenize(text, True, parse_special) == bos + plain
    assert vocab.adds_bos == bool(bos)


def test_a_text_that_brings_its_bos_gets_another(vocabs):
    assert vocabs[SPM].tokenize("<s>hello", True, True)[:2] == [1, 1]


@pytest.mark.parametrize(("name", "control"), ALL_CONTROLS)
def test_control_tokens_are_read_only_with_parse_special(vocabs, name, control):
    vocab = vocabs[name]
    (token,) = vocab.tokenize(control, False, True)
    tokens = vocab.tokenize(f"hello {control} world", False, False)
    assert token not in tokens
    assert vocab.detokenize(tokens).strip() == f"hello {control} world"
    assert vocab.tokenize(f"hello{control}", False, True)[-1] == token


@pytest.mark.parametrize(("name", "control"), ALL_CONTROLS)
def test_control_tokens_have_a_piece_only_if_special(vocabs, name, control):
    vocab = vocabs[name]
    (token,) = vocab.tokenize(control, False, True)
    assert vocab.piece(token) == b""
    assert vocab.piece(token, special=True) == control.encode()
    assert vocab.detokenize([token]) == control


@pytest.mark.parametrize(("name", "end"), [(BPE, "<|im_end|>"), (SPM, "</s>")])
def test_the_end_of_generation_is_known(vocabs, name, end):
    vocab = vocabs[name]
    (token,) = vocab.tokenize(end, False, True)
    assert token in vocab.eog_tokens
    assert vocab.eos_text == end
    assert vocab.tokenize("a", False, False)[-1] not in vocab.eog_tokens


@pytest.mark.parametrize("model", [BPE, SPM, "default"], indirect=True)
@pytest.mark.parametrize("unit", ["a", " ", "7", "é漢🙂 \n1 the world"])
def test_long_texts_come_back_from_a_thread_with_a_large_stack(model, unit):
    text = unit * (N_LONG // len(unit.encode()))
    opened = Model.open(str(model), vocab_only=True)
    with large_stacks(), ThreadPoolExecutor(1) as pool:
        tokens = pool.submit(opened.vocab.tokenize, text, False, False).result()
    assert opened.vocab.detokenize(tokens).removeprefix(" " if SPM in model.stem else "") == text
    opened.close()


@given(names, st.lists(texts, min_size=4, max_size=4))
@settings(few_examples, max_examples=20)
def test_threads_do_not_disturb_each_other(vocabs, name, texts):
    def tokenize(text):
        return vocabs[name].tokenize(text, True, False)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenize, texts)) == [tokenize(text) for text in texts]


@contextmanager
def large_stacks():
    """New threads get as much stack as the server gives to those that tokenize."""
    previous = threading.stack_size(STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(previous)
