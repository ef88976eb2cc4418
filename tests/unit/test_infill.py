"""Prompts of infill requests: their order, and what is cut of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import ContextExceeded, InvalidRequest, NotSupported
from corral.core.fim import FimTokens
from corral.core.params import GenerationParams
from corral.generate.params import RequestDefaults
from corral.generate.prepare_infill import (
    CHARS_PER_TOKEN,
    Sizes,
    first_items,
    last_items,
    plan_infill,
    plan_sizes,
    require_marks,
)
from corral.generate.system_prompt import SystemPrompt
from corral.schema.infill import InfillRequest
from tests.unit.fake import LETTERS, FakeVocab

PRE, SUF, MID, REP, SEP, PAD = (1 + LETTERS.index(mark) for mark in ".,;:!?")
FIM = FimTokens(PRE, SUF, MID, REP, SEP, PAD)
EXTRAS = [{"filename": "one", "text": "first"}, {"text": "second"}]
HUGE = 1 << 20
NO_SYSTEM = SystemPrompt()
SNIPPET = "\n\n    snippet    \n\n"  # the fake vocabulary has no dashes


class InfillVocab(FakeVocab):
    """Notes what it is asked for, and shows BOS as what it is."""

    def __init__(self, fim: FimTokens = FIM, adds_bos: bool = False) -> None:
        super().__init__(adds_bos)
        self.fim = fim
        self.calls: list[tuple[str, bool, bool]] = []

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        self.calls.append((text, add_special, parse_special))
        return super().tokenize(text, add_special, parse_special)

    def detokenize(self, tokens: list[int]) -> str:
        return "".join("<s>" if t == self.bos else super(InfillVocab, self).detokenize([t]) for t in tokens)


def prepare(
    vocab: InfillVocab | None = None,
    n_ctx: int = 4096,
    n_batch: int = 1024,
    is_suffix_first: bool = False,
    system: SystemPrompt = NO_SYSTEM,
    **body,
) -> tuple[str, list[str]]:
    """The prompt as text, and the warnings."""
    vocab = vocab or InfillVocab()
    request = InfillRequest(**{"input_prefix": "abc", "input_suffix": "xyz", **body})
    defaults = GenerationParams()
    base = RequestDefaults(
        vocab, n_ctx, 1, defaults, system, n_batch=n_batch, is_suffix_first=is_suffix_first
    )
    plan = plan_infill(request, base)
    (tokens,) = plan.prompts
    return vocab.detokenize(tokens), plan.warnings


@pytest.mark.parametrize(
    ("missing", "extra"),
    [
        ((), ":myproject\n!one\nfirst!tmp\nsecond!filename\n"),
        (("rep",), "!one\nfirst!tmp\nsecond!filename\n"),
        (("sep",), f":myproject\n{SNIPPET}first{SNIPPET}second"),
        (("rep", "sep"), f"{SNIPPET}first{SNIPPET}second"),
    ],
)
@pytest.mark.parametrize(("bos", "adds_bos"), [("", False), ("<s>", True)])
@pytest.mark.parametrize(("parts", "is_suffix_first"), [(".abc,xyz;start", False), (",xyz.abc;start", True)])
def test_the_order_of_the_parts(missing, extra, bos, adds_bos, parts, is_suffix_first):
    vocab = InfillVocab(replace(FIM, **dict.fromkeys(missing)), adds_bos)
    text, warnings = prepare(
        vocab, is_suffix_first=is_suffix_first, input_extra=EXTRAS, prompt="start", n_predict=8
    )
    assert text == extra + bos + parts
    assert warnings == []


def test_without_extras_only_the_names_of_project_and_file_remain():
    assert prepare()[0] == ":myproject\n!filename\n.abc,xyz;"
    plain = InfillVocab(replace(FIM, rep=None, sep=None), adds_bos=True)
    assert prepare(plain)[0] == "<s>.abc,xyz;"
    assert prepare(plain, input_prefix="", input_suffix="")[0] == "<s>.,;"


def test_prefix_and_suffix_may_be_mixed_with_tokens():
    vocab = InfillVocab(replace(FIM, rep=None, sep=None))
    assert prepare(vocab, input_prefix=["ab", 5, "d"], input_suffix=[6])[0] == ".abcd,d;"
    with pytest.raises(InvalidRequest, match=r"'input_suffix'.*64"):
        prepare(vocab, input_suffix=["a", 64])


def test_only_the_prompt_may_hold_special_tokens():
    vocab = InfillVocab()
    prepare(vocab, input_extra=EXTRAS, prompt="start")
    assert {text for text, _, parse_special in vocab.calls if parse_special} == {"start"}
    assert not any(add_special for _, add_special, _ in vocab.calls)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (["pre", "suf", "mid"], "no prefix token, no suffix token, no middle token"),
        (["suf"], "no suffix token"),
        (["mid", "sep"], "no middle token"),
    ],
)
def test_models_that_cannot_infill_are_told_what_is_missing(missing, named):
    with pytest.raises(NotSupported) as caught:
        require_marks(replace(FIM, **dict.fromkeys(missing)))
    assert caught.value.message == f"Infill is not supported by this model: it has {named}"
    assert require_marks(FimTokens(0, 1, 2)) == (0, 1, 2)


@pytest.mark.parametrize(
    ("n_prompt", "n_predict", "expected"),
    [
        (0, 64, Sizes(768, 254, 2048 - 1024 - 128)),
        (10, 64, Sizes(768, 244, 2048 - 1024 - 128)),
        (254, 64, Sizes(768, 0, 2048 - 1024 - 128)),
        (0, 511, Sizes(768, 254, 2)),
        (0, 600, Sizes(768, 254, 0)),
        (0, -1, Sizes(768, 254, 2048 - 512 - 4 - 768 - 254)),  # room for an answer
        (0, 0, Sizes(768, 254, 2048 - 1 - 4 - 768 - 254)),
        (1500, 64, Sizes(2048 - 64 - 4 - 1500, 0, 0)),
        (2040, 64, Sizes(0, 0, 0)),
    ],
)
def test_parts_are_cut_to_a_batch_and_to_the_context(n_prompt, n_predict, expected):
    wanted = Sizes(HUGE, HUGE, HUGE)
    assert plan_sizes(wanted, n_prompt, 4, n_predict, n_batch=1024, n_ctx=2048) == expected


def test_short_parts_are_kept_and_leave_their_room_to_no_other():
    assert plan_sizes(Sizes(10, 20, 30), 5, 4, 64, 1024, 2048) == Sizes(10, 20, 30)
    assert plan_sizes(Sizes(10, HUGE, 30), 5, 4, 64, 1024, 2048) == Sizes(10, 249, 30)


def test_an_unlimited_answer_gets_llama_servers_two_extra_tokens_where_they_fit():
    assert plan_sizes(Sizes(10, 10, HUGE), 0, 4, -1, 1024, 2048).extra == 2048 - 1024 + 2


counts = st.integers(0, 5000)


@given(st.builds(Sizes, counts, counts, counts), counts, st.integers(-2, 5000), counts, st.integers(8, 5000))
def test_a_prompt_always_fits_unless_its_fixed_part_does_not(wanted, n_prompt, n_predict, n_batch, n_ctx):
    kept = plan_sizes(wanted, n_prompt, 4, n_predict, n_batch, n_ctx)
    assert all(0 <= n <= n_all for n, n_all in zip(kept, wanted, strict=True))
    assert kept.prefix <= 3 * (n_batch // 4)
    assert kept.suffix <= max(0, n_batch // 4 - 2 - n_prompt)
    assert sum(kept) + n_prompt + 4 < n_ctx or (sum(kept) == 0 and n_prompt + 4 >= n_ctx)


def test_what_is_kept_is_what_is_nearest_to_the_gap():
    prefix, suffix = "a" * 100 + "b" * 48, "c" * 14 + "d" * 100
    extras = [{"filename": "one", "text": "e" * 500}]
    text, warnings = prepare(
        n_ctx=128, n_batch=64, input_prefix=prefix, input_suffix=suffix, input_extra=extras, n_predict=16
    )
    assert text == f"{'e' * 22}!filename\n.{'b' * 48},{'c' * 14};"
    assert warnings == [
        "Field 'input_prefix': kept the last 48 of 148 tokens",
        "Field 'input_suffix': kept the first 14 of 114 tokens",
        "Field 'input_extra': kept the last 32 of 526 tokens",
    ]


def test_names_of_ours_are_cut_without_a_word():
    text, warnings = prepare(n_ctx=64, n_batch=64, n_predict=16)
    assert text == ".abc,xyz;"
    assert warnings == []


def test_a_prompt_that_is_too_long_is_refused():
    assert prepare(n_ctx=64, n_batch=64, prompt="a" * 60)[0] == ".,;" + "a" * 60
    for n in (61, HUGE):
        with pytest.raises(ContextExceeded):
            prepare(n_ctx=64, n_batch=64, prompt="a" * n)


def test_a_system_prompt_comes_first_and_takes_its_room():
    vocab = InfillVocab(replace(FIM, rep=None, sep=None), adds_bos=True)
    system = SystemPrompt(tuple(vocab.tokenize("s" * 40, False, False)))
    assert prepare(vocab, system=system)[0] == "s" * 40 + ".abc,xyz;"
    assert prepare(vocab, system=system, system_prompt="new")[0] == "new.abc,xyz;"
    assert prepare(vocab, system=system, system_prompt="")[0] == "<s>.abc,xyz;"
    text, _ = prepare(vocab, n_ctx=128, n_batch=128, system=system, input_prefix="a" * 500, n_predict=8)
    assert text == "s" * 40 + "." + "a" * 57 + ",xyz;"


@pytest.mark.parametrize("is_list", [False, True])
def test_long_texts_are_not_tokenized_as_a_whole(is_list):
    n_ctx = 64
    long = "a" * HUGE
    before, behind, other = long + "b", "c" + long, long + "d"
    vocab = InfillVocab(replace(FIM, rep=None, sep=None))
    text, warnings = prepare(
        vocab,
        n_ctx=n_ctx,
        n_batch=32,
        n_predict=4,
        input_prefix=["", long, before] if is_list else before,
        input_suffix=[behind, long, ""] if is_list else behind,
        input_extra=[{"text": long}, {"text": other}],
    )
    assert text == f"{'a' * 23}d.{'a' * 23}b,c{'a' * 5};"
    n_most = n_ctx * CHARS_PER_TOKEN
    assert sum(len(asked) for asked, _, _ in vocab.calls) <= 3 * n_most
    assert warnings == [
        f"Field 'input_prefix': kept the last 24 of more than {n_most} tokens",
        f"Field 'input_suffix': kept the first 6 of more than {n_most} tokens",
        f"Field 'input_extra': kept the last 24 of more than {n_most} tokens",
    ]


items = st.lists(st.integers(0, 60) | st.text("ab", max_size=3 * CHARS_PER_TOKEN), max_size=12)


@given(items, st.integers(1, 8))
def test_items_are_clipped_at_the_far_end(items, n_tokens):
    vocab = FakeVocab()

    def tokens(items):
        return [t for i in items for t in ([i] if isinstance(i, int) else vocab.tokenize(i, False, False))]

    first, last = first_items(items, n_tokens), last_items(items, n_tokens)
    whole = tokens(items)
    assert tokens(first) == whole[: len(tokens(first))]
    assert tokens(last) == whole[len(whole) - len(tokens(last)) :]
    for kept in (first, last):
        assert len(kept) <= n_tokens
        assert sum(len(i) for i in kept if isinstance(i, str)) <= n_tokens * CHARS_PER_TOKEN
        if sum(max(CHARS_PER_TOKEN, len(i) if isinstance(i, str) else 0) for i in items) <= (
            n_tokens * CHARS_PER_TOKEN
        ):
            assert kept == items
