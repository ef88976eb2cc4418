"""Drafts on real libllama, from every source there is: the tokens are those of an engine that drafts nothing.

Tiny models are so fast that drafts seldom pay: here they are as long as they may be, wherever there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import CorralError
from corral.core.modifier import Override
from corral.core.params import MAX_AHEAD, Guidance, SamplingParams, SpeculativeParams
from corral.core.result import Done, TokenProbs
from corral.core.settings import EngineSettings
from corral.core.task import Stop, Task
from corral.engine.ngram_cache import NgramCache, write_cache
from corral.generate.constraint import grammar_or_schema
from corral.llama.drafter import Drafter
from corral.llama.model import Model
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, task
from tests.tools import tiny_models as tiny

CLOSE = 1e-4
N_PREDICT = 40
# A few favourites, so that the same words come again and again.
BIASED = tuple((token, 15.0) for token in range(97, 100))
EAGER = SpeculativeParams(n_max=16, p_min=0.0)
PLAIN: dict[str, Any] = {"lookup": False}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def seeded(**changes) -> SamplingParams:
    return msgspec.structs.replace(SEEDED, **changes)


@dataclass(frozen=True)
class Case:
    sampling: SamplingParams = GREEDY
    grammar: str = ""
    schema: object = None

    def task(self, id: int, prompt: Sequence[int], **params) -> Task:
        constraint = grammar_or_schema(self.grammar, self.schema, "spaced")
        params = {"speculative": EAGER, "n_predict": N_PREDICT, **params}
        return task(id, prompt, self.sampling, constraint=constraint, **params)


CASES: dict[str, Any] = {
    "greedy": Case(),
    "seed 1": Case(seeded(seed=1)),
    "seed 2": Case(seeded(seed=2, temperature=0.5)),
    "seed 3": Case(seeded(seed=3, top_k=5, top_p=0.9, min_p=0.1)),
    "few words": Case(seeded(logit_bias=BIASED)),
    "few words, greedy": Case(msgspec.structs.replace(GREEDY, logit_bias=BIASED)),
    "penalties": Case(seeded(logit_bias=BIASED, repeat_penalty=1.2, frequency_penalty=0.3)),
    "dry": Case(seeded(logit_bias=BIASED, dry_multiplier=0.8)),
    "xtc": Case(seeded(logit_bias=BIASED, xtc_probability=0.5, xtc_threshold=0.05)),
    "mirostat 1": Case(seeded(logit_bias=BIASED, mirostat=1, mirostat_tau=3.0)),
    "mirostat 2": Case(seeded(logit_bias=BIASED, mirostat=2, mirostat_tau=3.0)),
    "grammar": Case(seeded(n_probs=0), grammar='root ::= ("the " ("cat" | "dog") " sat on " [a-c]+ ". ")+'),
    "grammar with probabilities": Case(SEEDED, grammar='root ::= ("the " [ab] " is " [cd] ", ")+'),
    "schema": Case(seeded(n_probs=0), schema={"type": "array", "items": PERSON, "minItems": 2}),
    "schema, greedy": Case(GREEDY, schema=PERSON),
}


def on(*names) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


@pytest.fixture
def always(monkeypatch):
    """Drafts are as long as they may be."""
    monkeypatch.setattr("corral.engine.speculation.plan_length", lambda acceptance, n_max, *rest: n_max)


class DraftHarness(LlamaHarness):
    """Found out when warming up how many tokens it may evaluate at once."""

    def __init__(self, model: Path, n_parallel: int = 1, most: int = MAX_AHEAD, **options) -> None:
        super().__init__(model, n_parallel, **options)
        self.warm_up()
        self.decodes.clear()
        speculation = self.engine._speculation
        if options.get("draft_exact", True):
            speculation.n_exact = min(speculation.n_exact, most)
        self.n_ahead = speculation.n_exact

    @property
    def drafts(self) -> list[int]:
        """How many tokens each of them had."""
        return [c.logits - 1 for chunks, _ in self.decodes for c in chunks if c.logits > 1]

    @property
    def totals(self) -> tuple[int, int]:
        """Tokens that were drafted, and that came."""
        timings = [e.timings for e in self.events if isinstance(e, Done)]
        return sum(t.draft_n for t in timings), sum(t.draft_n_accepted for t in timings)


def all_tasks(bench: LlamaHarness) -> list[Task]:
    prompt = bench.prompt(40)
    return [case.task(id, prompt) for id, case in enumerate(CASES.values())]


@pytest.fixture(scope="module")
def undrafted(modifiers) -> list[tuple[list[int], str, list[TokenProbs]]]:
    """All cases, token by token."""
    with LlamaHarness(modifiers / "llama-bpe.gguf", **PLAIN) as bench:
        for one in all_tasks(bench):
            bench.run(one)
        return [told(bench, id) for id in range(len(CASES))]


def told(bench: LlamaHarness, id: int) -> tuple[list[int], str, list[TokenProbs]]:
    done = bench.done(id)
    return bench.tokens(id), f"{bench.text(id)}|{done.stop_type}|{done.n_past}", bench.answer(id)


def assert_same(found: tuple, expected: tuple) -> None:
    assert found[:2] == expected[:2]
    assert len(found[2]) == len(expected[2])
    for ours, theirs in zip(found[2], expected[2], strict=True):
        assert ours.chosen.id == theirs.chosen.id
        assert ours.chosen.prob == pytest.approx(theirs.chosen.prob, abs=CLOSE)
        assert [p.prob for p in ours.top] == pytest.approx([p.prob for p in theirs.top], abs=CLOSE)


def taught(path: Path, answers: Sequence[tuple]) -> str:
    """A file of what follows what in these answers."""
    cache = NgramCache()
    for tokens, *_ in answers:
        cache.learn(tokens)
        cache.learn(tokens)
    write_cache(str(path), cache.encode())
    return str(path)


SOURCES: dict[str, Any] = {
    "lookup": ("lookup",),
    "model": ("model_draft",),
    "static": ("lookup_cache_static",),
    "dynamic": ("lookup_cache_dynamic",),
    "all": ("lookup", "lookup_cache_static", "lookup_cache_dynamic", "model_draft"),
}


def options_for(source: str, directory: Path, answers: Sequence[tuple], modifiers: Path) -> dict:
    values = {
        "lookup": lambda: True,
        "model_draft": lambda: str(modifiers / "draft.gguf"),
        # Every other answer is known, so that the rest is guessed wrong now and then.
        "lookup_cache_static": lambda: taught(directory / "static.bin", answers[::2]),
        "lookup_cache_dynamic": lambda: taught(directory / "dynamic.bin", answers[1::2]),
    }
    return {**PLAIN, "p_split": 1.0} | {name: values[name]() for name in SOURCES[source]}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.usefixtures("always")
def test_all_kinds_of_requests_get_the_same_tokens(modifiers, undrafted, tmp_path, source):
    with DraftHarness(
        modifiers / "llama-bpe.gguf", **options_for(source, tmp_path, undrafted, modifiers)
    ) as bench:
        for one, expected in zip(all_tasks(bench), undrafted, strict=True):
            bench.run(one)
            assert_same(told(bench, one.id), expected)
        n_drafted, n_accepted = bench.totals
        assert n_drafted == sum(bench.drafts)
        assert max(bench.drafts) == bench.n_ahead - 1
        assert n_drafted > n_accepted > N_PREDICT, "some are right, and some are wrong"


@pytest.mark.parametrize("source", ["lookup", "model", "all"])
@pytest.mark.usefixtures("always")
def test_streams_side_by_side_get_the_same_tokens(modifiers, undrafted, tmp_path, source):
    options = options_for(source, tmp_path, undrafted, modifiers)
    with DraftHarness(modifiers / "llama-bpe.gguf", n_parallel=2, **options) as bench:
        bench.run(*all_tasks(bench))
        for id, expected in enumerate(undrafted):
            assert bench.tokens(id) == expected[0]
        n_drafted, n_accepted = bench.totals
        assert n_drafted > n_accepted > N_PREDICT


def test_the_pace_of_this_machine_makes_no_difference(modifiers, undrafted, tmp_path):
    """Whether or not drafts pay is measured; here, whatever comes of that."""
    options = options_for("all", tmp_path, undrafted, modifiers)
    with DraftHarness(modifiers / "llama-bpe.gguf", n_parallel=2, **options) as bench:
        bench.run(*all_tasks(bench))
        for id, expected in enumerate(undrafted):
            assert bench.tokens(id) == expected[0]


@pytest.mark.usefixtures("always")
def test_drafts_without_a_limit_of_rounding(modifiers):
    """They are as long as can be. Where rounding does not matter, tokens stay the same all the same."""
    path = modifiers / "llama-bpe.gguf"
    case = CASES["few words, greedy"]
    with LlamaHarness(path, **PLAIN) as bench:
        bench.run(case.task(0, bench.prompt(40)))
        expected = bench.tokens(0)
    with DraftHarness(path, draft_exact=False) as bench:
        bench.run(case.task(0, bench.prompt(40)))
        assert bench.n_ahead == MAX_AHEAD
        assert bench.tokens(0) == expected
        assert max(bench.drafts) == MAX_AHEAD - 1


@on("gemma-swa", "mamba", "llama-spm")
@pytest.mark.usefixtures("always")
def test_other_memories_get_the_same_tokens(model):
    """A window is left behind while drafts are made; a recurrent model takes them back to marks."""
    tasks = [
        Case(msgspec.structs.replace(sampling, logit_bias=BIASED)).task(id, [], n_predict=120)
        for id, sampling in enumerate([GREEDY, SEEDED, seeded(seed=2, top_k=3)])
    ]
    answers = []
    for options in (PLAIN, {}):
        with DraftHarness(model, n_parallel=2, **options) as bench:
            tasks = [msgspec.structs.replace(one, prompt=bench.prompt(30, seed=one.id)) for one in tasks]
            bench.run(*tasks)
            answers.append([bench.tokens(one.id) for one in tasks])
            is_drafting = options == {}
            assert (bench.totals[1] > 0) == is_drafting
            assert bool(bench.drafts) == is_drafting
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("always")
def test_a_window_that_was_restored_drafts_too(models):
    case, answers = CASES["few words"], []
    for options in (PLAIN, {}):
        with DraftHarness(models / "gemma-swa.gguf", **options) as bench:
            prompt = bench.prompt(91)
            bench.run(case.task(0, prompt, n_predict=0))
            bench.run(case.task(1, bench.prompt(90, seed=1)))
            bench.run(case.task(2, [*prompt, *bench.prompt(20, seed=2)]))
            assert bench.n_cached(2) > 80
            for id in (1, 2):
                assert (bench.done(id).timings.draft_n > 0) == (options is not PLAIN)
            answers.append(told(bench, 2))
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("always")
def test_contexts_that_shift_and_engines_that_are_lost(modifiers):
    path, case = modifiers / "llama-bpe.gguf", CASES["few words"]
    options = {"n_ctx_slot": 256, "context_shift": True}
    with LlamaHarness(path, **options, **PLAIN) as bench:
        one = case.task(0, bench.prompt(50), n_predict=500, n_keep=3)
        bench.run(one)
        assert bench.done(0).truncated
        expected = bench.tokens(0)
    with DraftHarness(path, **options) as bench:
        bench.run(one)
        assert bench.tokens(0) == expected
        assert bench.totals[1] > 100
    for n in (1, 100, 230, 499):
        with DraftHarness(path, **options) as bench:
            bench.run(msgspec.structs.replace(one, resume=expected[:n]))
            assert bench.tokens(0) == expected[n:]
            first = next((c for chunks, _ in bench.decodes for c in chunks if c.logits > 1), None)
            assert first is not None or n == 499


@pytest.mark.usefixtures("always")
def test_streams_that_do_not_fit_together_take_turns(modifiers):
    path = modifiers / "llama-bpe.gguf"
    with DraftHarness(path, n_parallel=4, n_ctx=512, kv_unified=True) as bench:
        tasks = [CASES["few words"].task(id, bench.prompt(60, seed=id), n_predict=150) for id in range(6)]
        bench.run(*tasks)
        assert DecodeStatus.NO_ROOM in bench.statuses
        assert bench.totals[1] > 0
        assert [len(bench.tokens(one.id)) for one in tasks] == [150] * 6


@pytest.mark.usefixtures("always")
def test_guided_requests_draft_nothing(modifiers):
    guidance = Guidance(1.5, tuple(range(100, 120)))
    answers = []
    for options in (PLAIN, {"model_draft": str(modifiers / "draft.gguf"), "p_split": 1.0}):
        with DraftHarness(modifiers / "llama-bpe.gguf", n_parallel=2, **options) as bench:
            prompt = bench.prompt(40)
            guided = CASES["few words"].task(0, prompt, guidance=guidance)
            bench.run(guided, CASES["few words"].task(1, prompt[:30]))
            assert bench.done(0).timings.draft_n == 0
            assert (bench.done(1).timings.draft_n > 0) == (options is not PLAIN)
            answers.append([bench.tokens(id) for id in range(2)])
    assert answers[0] == answers[1]


@on("default")
@pytest.mark.usefixtures("always")
def test_a_prompt_that_repeats_itself(model):
    """Whether it pays depends on the machine: here it is done anyway."""
    text = "one, two, three, four, five, six, seven, eight, nine, ten, "
    answers = []
    for options in (PLAIN, {}):
        with DraftHarness(model, most=MAX_AHEAD, **options) as bench:
            prompt = bench.backend.vocab.tokenize((text * 4).strip(), True, False)
            bench.run(task(0, prompt, GREEDY, 24))
            bench.run(task(1, prompt, SEEDED, 12))
            answers.append([told(bench, id) for id in range(2)])
    for found, expected in zip(answers[1], answers[0], strict=True):
        assert_same(found, expected)
    assert bench.totals[1] > 10


# How many tokens at once.


@on("llama-bpe", "gemma-swa", "default", "q8_0")
def test_what_the_probe_finds_is_true_far_into_a_text(model):
    n_before = 300
    with LlamaHarness(model) as bench:
        bench.warm_up()
        backend, n_ahead = bench.backend, bench.engine._speculation.n_exact
        assert n_ahead > 1, "nothing is drafted on this machine"
        tokens = np.array(bench.prompt(n_before + n_ahead), np.int32)
        assert backend.decode([Chunk(0, 0, tokens[:n_before], 1)]) is DecodeStatus.OK
        rows = []
        for i in range(n_before, len(tokens)):
            backend.decode([Chunk(0, i, tokens[i : i + 1], 1)])
            rows.append(backend.logits(0).copy())
        for n in range(2, n_ahead + 1):
            assert backend.trim(0, n_before)
            backend.decode([Chunk(0, n_before, tokens[n_before : n_before + n], n)])
            for i in range(n):
                assert np.abs(backend.logits(0, n - 1 - i) - rows[i]).max() <= 1e-3


@pytest.mark.parametrize(
    "model",
    ["llama-bpe", "llama-spm", "gemma-swa", "default"],
    indirect=True,
)
def test_what_the_probe_finds_is_true_for_a_whole_text(model):
    """One sequence grows token by token, the other as it would if all drafts were right."""
    with LlamaHarness(model, n_parallel=2) as bench:
        bench.warm_up()
        backend, n = bench.backend, bench.engine._speculation.n_exact
        n_tokens = 110 if model.stem.startswith("SmolLM") else 400
        tokens = np.array(bench.prompt(n_tokens), np.int32)
        for seq in range(2):
            backend.decode([Chunk(seq, 0, tokens[:40], 1)])
        for start in range(40, n_tokens - n, n):
            backend.decode([Chunk(0, start, tokens[start : start + n], n)])
            rows = [backend.logits(0, n - 1 - i).copy() for i in range(n)]
            for i in range(n):
                backend.decode([Chunk(1, start + i, tokens[start + i : start + i + 1], 1)])
                assert np.abs(backend.logits(0) - rows[i]).max() <= 1e-4


@on("llama-bpe")
def test_rows_are_those_of_their_tokens(model):
    """Of two chunks in a batch, with several rows each."""
    with LlamaHarness(model, n_parallel=2) as bench:
        backend = bench.backend
        chunks = [Chunk(i, 0, np.array(bench.prompt(9, seed=i), np.int32), 4 - i) for i in range(2)]
        assert backend.decode(chunks) is DecodeStatus.OK
        rows = [[backend.logits(i, back).copy() for back in range(4 - i)] for i in range(2)]
        for i, chunk in enumerate(chunks):
            for back, row in enumerate(rows[i]):
                backend.trim(i, 0)
                backend.decode([Chunk(i, 0, chunk.tokens[: 9 - back], 1)])
                assert row.argmax() == backend.logits(0).argmax()
                assert np.abs(row - backend.logits(0)).max() < 0.1


# The draft model.


def open_drafter(modifiers: Path, draft: Path | None = None, **options) -> tuple[Drafter, Model]:
    settings = EngineSettings(
        model=str(modifiers / "llama-bpe.gguf"),
        model_draft=str(draft or modifiers / "draft.gguf"),
        **{"n_threads": 1, "flash_attn": "off", "p_split": 1.0, **options},
    )
    target = Model.load(settings)
    return Drafter.open(settings, target, n_seq=2, n_ctx=256), target


@pytest.fixture
def drafter(modifiers) -> Drafter:
    return open_drafter(modifiers)[0]


@pytest.fixture(scope="module")
def said(modifiers) -> list[int]:
    """What the draft model says greedily behind a prompt, all in a row."""
    with LlamaHarness(modifiers / "draft.gguf", **PLAIN) as bench:
        prompt = bench.prompt(60)
        bench.run(task(0, prompt, GREEDY, 40))
        return [*prompt, *bench.tokens(0)]


def test_a_draft_is_what_the_small_model_says(drafter, said):
    for n in (60, 62, 75, 61, 60):  # forward, and back again
        assert drafter.catch_up(0, np.array(said[:n], np.int32), False)
        assert drafter.draft(0, 7, 0.0) == said[n : n + 7]
    assert drafter.catch_up(1, np.array(said[:65], np.int32), False)
    assert drafter.draft(1, 3, 0.0) == said[65:68]
    assert drafter.token_ms > 0


def test_another_text_takes_the_place_of_the_first(drafter, said):
    other = [*said[:20], *range(97, 120)]
    assert drafter.catch_up(0, np.array(other, np.int32), False)
    drafter.draft(0, 5, 0.0)
    assert drafter.catch_up(0, np.array(said[:60], np.int32), False)
    assert drafter.draft(0, 5, 0.0) == said[60:65]


def test_who_has_to_be_brief_catches_up_bit_by_bit(drafter, said):
    tokens = np.array(said[:90], np.int32)
    assert [drafter.catch_up(0, tokens, True) for _ in range(3)] == [False, False, True]
    assert drafter.draft(0, 5, 0.0) == said[90:95]


def test_it_is_silent_where_it_is_not_sure(modifiers, said):
    drafter, _ = open_drafter(modifiers)
    tokens = np.array(said[:60], np.int32)
    lengths = []
    for p_min in (0.0, 0.3, 0.6, 1.0):
        assert drafter.catch_up(0, tokens, False)
        draft = drafter.draft(0, 40, p_min)
        assert draft == said[60 : 60 + len(draft)]
        lengths.append(len(draft))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 40
    assert lengths[-1] == 0
    drafter, _ = open_drafter(modifiers, p_split=0.05)
    assert drafter.catch_up(0, tokens, False)
    assert len(drafter.draft(0, 40, 0.0)) < 40


def test_a_text_that_is_too_long_for_it(drafter):
    most = np.full(256, 97, np.int32)
    assert drafter.catch_up(0, most, False)
    assert len(drafter.draft(0, 5, 0.0)) == 1, "there is no room for more"
    assert not drafter.catch_up(0, np.full(257, 97, np.int32), False)
    assert not drafter.catch_up(2, most[:9], False), "it has two sequences"
    assert drafter.catch_up(0, most[:9], False)


@pytest.mark.usefixtures("always")
def test_a_model_with_more_tokens_than_its_draft(models, modifiers):
    """The last few of a vocabulary need not be the same; the small model cannot be asked about them."""
    path, mark = models / "llama-fim.gguf", []
    answers = []
    for options in (PLAIN, {**PLAIN, "p_split": 1.0, "model_draft": str(modifiers / "llama-bpe.gguf")}):
        with DraftHarness(path, **options) as bench:
            mark = bench.backend.vocab.tokenize(tiny.FIM["pre"], False, True)
            assert mark == [bench.backend.n_vocab - len(tiny.FIM)]
            bench.run(Case().task(0, [*mark, *bench.prompt(40)]))
            bench.run(Case().task(1, bench.prompt(40)))
            answers.append([told(bench, id) for id in range(2)])
            assert (bench.done(1).timings.draft_n > 0) == (options is not PLAIN)
    for found, expected in zip(answers[1], answers[0], strict=True):
        assert_same(found, expected)


@pytest.mark.usefixtures("always")
def test_a_draft_with_more_tokens_than_the_model(models, modifiers):
    options = {**PLAIN, "p_split": 1.0, "model_draft": str(models / "llama-fim.gguf")}
    with DraftHarness(modifiers / "llama-bpe.gguf", **options) as bench:
        bench.run(Case(seeded(seed=1)).task(0, bench.prompt(40)))
        assert bench.done(0).timings.draft_n > 0
        found = bench.tokens(0)
    with LlamaHarness(modifiers / "llama-bpe.gguf", **PLAIN) as bench:
        bench.run(Case(seeded(seed=1)).task(0, bench.prompt(40)))
        assert bench.tokens(0) == found


# Draft models that are none.


def many_tokens() -> tiny._Vocabulary:
    return tiny._bpe_vocabulary(more_controls=[f"<|more {i}|>" for i in range(129)])


@pytest.fixture(scope="module")
def larger(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("drafts") / "larger.gguf"
    return tiny._write(path, tiny._Recipe("llama", 1, many_tokens, tiny._add_llama))


def refusal(modifiers: Path, draft: Path, *overrides: Override) -> str:
    with pytest.raises(CorralError) as caught:
        open_drafter(modifiers, draft, overrides=overrides)
    return caught.value.message


def test_another_type_of_vocabulary_is_refused(modifiers, models):
    message = refusal(modifiers, models / "llama-spm.gguf")
    assert message == "--model-draft: its vocabulary differs from the model's: they are of different types"


def test_other_words_are_refused(modifiers):
    message = refusal(modifiers, modifiers / "draft-other-vocab.gguf")
    assert "its vocabulary differs from the model's: token 256 is b" in message


def test_far_more_words_are_refused(modifiers, larger):
    n = len(tiny._bpe_vocabulary().tokens)
    assert f"it has {n + 129} tokens instead of {n}" in refusal(modifiers, larger)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("bos_token_id", 65, "its BOS token is "),
        ("eos_token_id", 65, "its EOS token is "),
        ("add_bos_token", True, "only one of them begins texts with BOS"),
    ],
)
def test_other_marks_are_refused(modifiers, key, value, reason):
    override = Override(f"tokenizer.ggml.{key}", value)
    assert reason in refusal(modifiers, modifiers / "draft.gguf", override)


def test_a_recurrent_draft_is_refused(modifiers, models):
    assert "cannot roll back" in refusal(modifiers, models / "mamba.gguf")


def test_a_draft_that_is_missing_or_no_model_is_refused(modifiers, tmp_path):
    assert "missing.gguf" in refusal(modifiers, tmp_path / "missing.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    assert "text.gguf" in refusal(modifiers, tmp_path / "text.gguf")


# What is learned.


def test_the_dynamic_cache_learns_and_helps(modifiers, tmp_path, monkeypatch):
    path, file = modifiers / "llama-bpe.gguf", tmp_path / "dynamic.bin"
    options = {**PLAIN, "lookup_cache_dynamic": str(file)}
    tokens = []
    for n_runs in range(3):
        with DraftHarness(path, **options) as bench:
            monkeypatch.setattr(
                "corral.engine.speculation.plan_length", lambda acceptance, n_max, *rest: n_max
            )
            bench.run(Case().task(0, bench.prompt(40)))
            bench.engine.handle(Stop())
            tokens.append(bench.tokens(0))
            # A run of three or four tokens counts once it has been there twice.
            assert (bench.totals[1] > N_PREDICT // 2) == (n_runs == 2)
    assert tokens[0] == tokens[1] == tokens[2]
    assert [entry.name for entry in tmp_path.iterdir()] == ["dynamic.bin"]
