"""Infilling with the words of a real vocabulary, and with a real model's answers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from corral.core.fim import FimTokens
from corral.core.params import GenerationParams
from corral.generate.params import RequestDefaults
from corral.generate.prepare_infill import CHARS_PER_TOKEN, plan_infill
from corral.llama.model import Model
from corral.schema.infill import InfillRequest
from corral.text.vocab import Vocab
from tests.model.llama_harness import LlamaHarness, task
from tests.tools.tiny_models import FIM

PREFIX = "def hello(you):\n    return "
SUFFIX = "\n\nhello(world)\n"
EXTRAS = [{"filename": "one.py", "text": "# the world\n"}, {"text": "# and you\n"}]
N_CTX = 1024
N_BATCH = 256


def vocab_of(native) -> Vocab:
    """As the front has it."""
    return Vocab(native.table({}), native.tokenize_all)


@pytest.fixture(scope="module")
def vocab(models):
    model = Model.open(str(models / "llama-fim.gguf"), vocab_only=True)
    yield vocab_of(model.vocab)
    model.close()


def prompt_of(vocab, n_predict=16, **body) -> list[int]:
    request = InfillRequest(
        **{"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": n_predict, **body}
    )
    plan = plan_infill(request, RequestDefaults(vocab, N_CTX, 1, GenerationParams(), n_batch=N_BATCH))
    (prompt,) = plan.prompts
    return prompt


def tokens_of(vocab, *parts: str) -> list[int]:
    """Texts and names of marks in a row, each tokenized for itself."""
    return [token for part in parts for token in vocab.tokenize(FIM.get(part, part), False, part in FIM)]


def test_the_tokens_are_found_by_their_names(vocab):
    assert vocab.fim == FimTokens(**{name: vocab.token_of(text) for name, text in FIM.items()})
    assert None not in [vocab.token_of(text) for text in FIM.values()]


@pytest.mark.parametrize("model", ["llama-bpe", "llama-spm", "default"], indirect=True)
def test_other_models_have_none(model):
    opened = Model.open(str(model), vocab_only=True)
    fim = vocab_of(opened.vocab).fim
    assert (fim.pre, fim.suf, fim.mid) == (None, None, None)
    opened.close()


def test_the_prompt_is_the_one_that_is_built_by_hand(vocab):
    project = tokens_of(vocab, "rep", "myproject\n")
    files = tokens_of(vocab, "sep", "one.py\n", "# the world\n", "sep", "tmp\n", "# and you\n")
    own = tokens_of(vocab, "sep", "filename\n", "pre", PREFIX, "suf", SUFFIX, "mid", "hello")
    assert prompt_of(vocab, prompt="hello") == project + own
    assert prompt_of(vocab, prompt="hello", input_extra=EXTRAS) == project + files + own


def test_marks_in_texts_are_text(vocab):
    before, behind = "".join(FIM.values()), FIM["mid"]
    plain = tokens_of(vocab, "rep", "myproject\n", "sep", "filename\n", "pre", before, "suf", behind, "mid")
    assert prompt_of(vocab, input_prefix=before, input_suffix=behind) == plain
    parsed = prompt_of(vocab, input_prefix=before, input_suffix=behind, prompt=behind)
    assert parsed == [*plain, vocab.fim.mid]


@pytest.mark.parametrize("model", ["llama-bpe", "llama-spm", "default"], indirect=True)
def test_a_long_text_is_cut_as_if_all_of_it_had_been_tokenized(model):
    opened = Model.open(str(model), vocab_only=True)
    vocab = vocab_of(opened.vocab)
    vocab.fim = FimTokens(11, 12, 13)  # as if some of its tokens were marks
    draw = random.Random(1)
    words = ["the", "world", "hello", "    ", "\n\n", "you();", "é漢🙂", "x" * 40, "12345", "\t"]
    text = "".join(draw.choices(words, k=100_000))
    assert len(text) > CHARS_PER_TOKEN * N_CTX
    whole = vocab.tokenize(text, False, False)
    before, behind = whole[-3 * N_BATCH // 4 :], whole[: N_BATCH // 4 - 2]
    bos = [vocab.bos] if vocab.adds_bos else []
    assert prompt_of(vocab, input_prefix=text, input_suffix=text) == [*bos, 11, *before, 12, *behind, 13]
    opened.close()


@pytest.mark.parametrize("model", ["llama-fim"], indirect=True)
def test_the_answer_depends_on_all_parts(model):
    with LlamaHarness(model, n_ctx_slot=N_CTX) as bench:
        vocab = vocab_of(bench.backend.vocab)
        bodies: list[dict[str, Any]] = [
            {},
            {"input_extra": EXTRAS},
            {"input_suffix": "x"},
            {"prompt": "hello"},
            {},
        ]
        for i, body in enumerate(bodies):
            bench.run(task(i, prompt_of(vocab, **body)))
        answers = [tuple(bench.tokens(i)) for i in range(len(bodies))]
        assert len(set(answers)) == 4
        assert answers[0] == answers[-1]
