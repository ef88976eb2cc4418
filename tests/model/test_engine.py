"""Laws of the engine on real libllama: an answer does not depend on caches, chunks, neighbours or faults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.chunk import MIN_CHUNK, DecodeStatus
from corral.core.result import Done, StopType
from corral.engine.prefix import MIN_REUSE
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, alone, task
from tests.model.raw import raw_greedy

TINY = ["llama-bpe", "llama-spm", "gemma-swa", "mamba"]
CUTTABLE = TINY[:3]  # their sequences can be cut anywhere
RESTORABLE = TINY[:2]  # and also when they come from a saved state

few_examples = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def on(*names) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


either_way = pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])


@on(*TINY, "default")
def test_greedy_text_is_what_libllama_alone_gives(model):
    with LlamaHarness(model, n_parallel=2) as bench:
        prompt = bench.prompt(60)
        bench.run(task(0, prompt))
        assert bench.tokens(0) == raw_greedy(model, prompt, 24)
        assert bench.done(0).stop_type is StopType.LIMIT


@on(*TINY)
@either_way
def test_cached_equals_uncached(model, sampling):
    with LlamaHarness(model) as bench:
        prompt = bench.prompt(90)
        bench.run(task(0, prompt, sampling))
        bench.run(task(1, prompt, sampling))
        bench.run(task(2, prompt, sampling, cache_prompt=False))
        assert bench.n_cached(1) > len(prompt) - MIN_REUSE
        assert bench.n_cached(2) == 0
        assert bench.answer(0) == bench.answer(1) == bench.answer(2)
        assert len(bench.answer(0)) == 24


@given(n_shared=st.integers(0, 99))
@few_examples
def test_any_cached_beginning_gives_the_same_answer(models, n_shared):
    for name in TINY:
        path = models / f"{name}.gguf"
        with LlamaHarness(path, n_ubatch=64) as bench:
            prompt = bench.prompt(100)
            bench.run(task(0, [*prompt[:n_shared], *bench.prompt(40, seed=1)], n_predict=5))
            bench.run(task(1, prompt, SEEDED))
            assert bench.answer(1) == alone(path, task(1, prompt, SEEDED))


@on(*TINY)
@either_way
@pytest.mark.parametrize("n_prompt", [147, 151])
def test_the_size_of_chunks_makes_no_difference(model, sampling, n_prompt):
    assert_same_in_chunks(model, n_prompt, sampling, n_predict=24)


@on("default", "q8_0")
def test_the_size_of_chunks_makes_no_difference_to_quantized_weights(model):
    assert_same_in_chunks(model, 70, GREEDY, n_predict=2)


def assert_same_in_chunks(model, n_prompt, sampling, n_predict):
    answers = []
    for n_ubatch in (16, 32, 512):
        with LlamaHarness(model, n_ubatch=n_ubatch, n_ctx_checkpoints=0) as bench:
            bench.run(task(0, bench.prompt(n_prompt), sampling, n_predict))
            assert max(bench.chunk_sizes) == min(n_ubatch, n_prompt)
            answers.append(bench.answer(0))
    assert answers[0] == answers[1] == answers[2]


@on("llama-bpe")
@pytest.mark.parametrize(
    ("options", "n_most"),
    [({}, 256), ({"flash_attn": "on"}, 512), ({"n_ubatch": 384}, 384), ({"n_batch": 128}, 128)],
)
def test_pieces_of_a_prompt_are_smaller_where_attention_looks_at_whole_ones(model, options, n_most):
    with LlamaHarness(model, n_ctx=1024, **options) as bench:
        bench.run(task(0, bench.prompt(600), n_predict=1))
        assert max(bench.chunk_sizes) == n_most


@on(*CUTTABLE)
def test_a_running_request_lends_its_prefix(model):
    with LlamaHarness(model, n_parallel=2) as bench:
        prefix = bench.prompt(60)
        first = task(0, [*prefix, *bench.prompt(12, seed=1)], SEEDED, n_predict=60)
        second = task(1, [*prefix, *bench.prompt(20, seed=2)], SEEDED)
        bench.engine.handle(first)
        bench.step_until(lambda: len(bench.tokens(0)) == 5)
        bench.engine.handle(second)
        bench.step_until(lambda: bench.of(1, Done))
        assert not bench.of(0, Done), "the first one must have been running all the time"
        bench.run()
        assert bench.n_cached(1) >= len(prefix)
        assert bench.answer(1) == alone(model, second)
        assert bench.answer(0) == alone(model, first)


@on(*CUTTABLE)
def test_a_prefix_is_evaluated_once_for_eight_that_arrive_together(model):
    with LlamaHarness(model, n_parallel=8, n_ubatch=32) as bench:
        prefix = bench.prompt(200)
        tasks = [task(i, [*prefix, *bench.prompt(12, seed=i + 1)], n_predict=8) for i in range(8)]
        bench.run(*tasks)
        assert sum(bench.chunk_sizes) < len(prefix) + 8 * (12 + MIN_REUSE)
        assert sum(bench.n_cached(i) > len(prefix) - MIN_REUSE for i in range(8)) == 7
        assert [bench.tokens(i) for i in range(8)] == [tokens_alone(model, one) for one in tasks]


@on("llama-bpe", "llama-spm", "mamba", "default")
@either_way
def test_neighbours_do_not_change_an_answer(model, sampling):
    with LlamaHarness(model, n_parallel=4) as bench:
        one = task(0, bench.prompt(40), sampling, n_predict=16)
        others = [task(i, bench.prompt(20 + i, seed=i), SEEDED, n_predict=4 * i) for i in (1, 2, 3)]
        bench.run(others[0], one, *others[1:])
        assert bench.tokens(0) == tokens_alone(model, one)
        assert all(len(bench.tokens(i)) == 4 * i for i in (1, 2, 3))


@on(*CUTTABLE, "default")
def test_two_neighbours_change_no_bit_of_an_answer(model):
    with LlamaHarness(model, n_parallel=4) as bench:
        one = task(0, bench.prompt(40), n_predict=12)
        others = [task(i, bench.prompt(20, seed=i), n_predict=12) for i in (1, 2)]
        bench.run(one, *others)
        assert bench.answer(0) == alone(model, one)


@on(*TINY)
def test_a_slot_that_had_to_yield_answers_the_same(model):
    with LlamaHarness(model, n_parallel=1) as bench:
        for id, seed in ((0, 0), (1, 1), (2, 0)):
            bench.run(task(id, bench.prompt(90, seed), SEEDED))
        assert bench.n_cached(1) < MIN_CHUNK
        assert bench.n_cached(2) > 90 - MIN_REUSE or model.stem not in RESTORABLE
        assert bench.answer(2) == bench.answer(0)


@on(*RESTORABLE, "gemma-swa", "mamba")
def test_a_prompt_that_had_to_yield_is_continued_as_if_cold(model):
    with LlamaHarness(model, n_parallel=1) as bench:
        prompt = bench.prompt(91)
        longer = task(2, [*prompt, *bench.prompt(20, seed=2)])
        bench.run(task(0, prompt, n_predict=0))
        bench.run(task(1, bench.prompt(90, seed=1)))
        bench.run(longer)
        assert bench.n_cached(2) > 91 - MIN_REUSE
        assert bench.answer(2) == alone(model, longer)


@on(*CUTTABLE, "mamba")
def test_a_conversation_that_yields_goes_on_from_ram(model):
    with LlamaHarness(model, n_parallel=1) as bench:
        prompt = bench.prompt(90)
        bench.run(task(0, prompt))
        second_turn = [*prompt, *bench.tokens(0), *bench.prompt(20, seed=2)]
        bench.run(task(1, bench.prompt(90, seed=1)))
        bench.run(task(2, second_turn))
        assert bench.n_cached(2) > len(prompt)
        assert bench.tokens(2) == tokens_alone(model, task(2, second_turn))


@on(*RESTORABLE, "gemma-swa", "mamba")
def test_a_restored_conversation_can_be_taken_up_from_an_earlier_turn(model):
    with LlamaHarness(model, n_parallel=1) as bench:
        prompt = bench.prompt(90)
        bench.run(task(0, prompt))
        second_turn = [*prompt, *bench.tokens(0), *bench.prompt(20, seed=2)]
        bench.run(task(1, bench.prompt(90, seed=1)))
        bench.run(task(2, second_turn))
        other_turn = task(3, [*prompt, *bench.prompt(20, seed=3)])
        bench.run(other_turn)
        assert bench.answer(3) == alone(model, other_turn)


@on(*TINY)
@either_way
@pytest.mark.parametrize("n_before", [20, 90])
def test_a_changed_middle_answers_as_if_cold(model, sampling, n_before):
    with LlamaHarness(model) as bench:
        before, after = bench.prompt(n_before), bench.prompt(50, seed=1)
        bench.run(task(0, [*before, *bench.prompt(30, seed=2), *after], sampling))
        changed = task(1, [*before, *bench.prompt(30, seed=3), *after], sampling)
        bench.run(changed)
        assert (bench.n_cached(1) > 0) == (model.stem != "mamba")
        assert bench.answer(1) == alone(model, changed)


BLOCKS = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@given(
    name=st.sampled_from(RESTORABLE),
    specs=st.lists(st.tuples(BLOCKS, st.integers(1, 12), st.integers(0, 6)), min_size=2, max_size=10),
)
@few_examples
def test_whatever_arrives_whenever_is_answered_as_if_alone(models, name, specs):
    """Prompts share beginnings; slots lend, yield and wait in any order."""
    path = models / f"{name}.gguf"
    with LlamaHarness(path, n_parallel=3, n_ubatch=32) as bench:
        never_generated = min(bench.backend.vocab.eog_tokens)
        blocks = [[never_generated, *bench.prompt(29, seed=seed)] for seed in range(4)]
        prompts = [[token for i in numbers for token in blocks[i]] for numbers, _, _ in specs]
        tasks = [task(i, prompts[i], n_predict=n_predict) for i, (_, n_predict, _) in enumerate(specs)]
        for one, (_, _, n_steps) in zip(tasks, specs, strict=True):
            bench.engine.handle(one)
            for _ in range(n_steps):
                bench.step()
        bench.run()
        assert [bench.answer(one.id) for one in tasks] == [alone(path, one) for one in tasks]


@on(*CUTTABLE)
def test_context_shift_forgets_exactly_what_it_should(model):
    n_keep, n_discard = 5, 100
    with LlamaHarness(model, n_ctx_slot=256, n_parallel=2, context_shift=True) as bench:
        prompt = bench.prompt(50)
        bench.run(task(0, prompt, n_predict=600, n_keep=n_keep, n_discard=n_discard))
        kept = n_keep + bench.backend.vocab.adds_bos
        assert bench.tokens(0) == raw_greedy(model, prompt, 600, 256, kept, n_discard)
        assert bench.done(0).truncated
        everything = [*prompt, *bench.tokens(0)[:-1]]
        held = bench.slots[0].tokens.view.tolist()
        assert held == everything[:kept] + everything[kept - len(held) :]
        bench.run(task(1, held, id_slot=1, n_predict=0, cache_prompt=False))
        assert len(bench.backend.save(0)) == len(bench.backend.save(1)), "as many cells as tokens"


@on(*TINY)
def test_resuming_after_shifts_continues_the_same(model):
    options: dict[str, Any] = {"n_ctx_slot": 256, "context_shift": True, "batch_exact": "on"}
    with LlamaHarness(model, **options) as bench:
        whole = task(0, bench.prompt(50), SEEDED, n_predict=500, n_keep=3)
        bench.run(whole)
        assert bench.done(0).truncated
        for n_delivered in (150, 220, 430):
            resumed = msgspec.structs.replace(whole, resume=bench.tokens(0)[:n_delivered])
            assert alone(model, resumed, **options) == bench.answer(0)[n_delivered:]


SAMPLERS: dict[str, Any] = {
    "greedy": GREEDY,
    "plain": SEEDED,
    "penalties": msgspec.structs.replace(SEEDED, repeat_penalty=1.3, frequency_penalty=0.5),
    "dry": msgspec.structs.replace(
        SEEDED, dry_multiplier=0.8, dry_allowed_length=1, logit_bias=((65, 9.0), (66, 9.0), (67, 9.0))
    ),
    "xtc": msgspec.structs.replace(SEEDED, xtc_probability=0.5, xtc_threshold=0.05),
    "mirostat 1": msgspec.structs.replace(SEEDED, mirostat=1, mirostat_tau=3.0),
    "mirostat 2": msgspec.structs.replace(SEEDED, mirostat=2, mirostat_tau=3.0),
}


@on("llama-bpe", "mamba")
@pytest.mark.parametrize("sampling", SAMPLERS.values(), ids=SAMPLERS)
def test_resuming_after_any_token_continues_the_same(model, sampling):
    with LlamaHarness(model, batch_exact="on") as bench:
        whole = task(0, bench.prompt(40), sampling, n_predict=40)
        bench.run(whole)
        expected = bench.answer(0)
    assert len(expected) == 40
    for k in (1, 7, 25, 39):
        resumed = msgspec.structs.replace(whole, resume=[probs.chosen.id for probs in expected[:k]])
        assert alone(model, resumed, batch_exact="on") == expected[k:]


@on(*CUTTABLE)
@pytest.mark.parametrize("n_predict", [200, 600])
def test_requests_that_do_not_fit_together_take_turns(model, n_predict):
    with LlamaHarness(model, n_parallel=4, n_ctx=512, kv_unified=True, context_shift=True) as bench:
        bench.run(*(task(i, bench.prompt(60 + 5 * i, seed=i), SEEDED, n_predict) for i in range(6)))
        assert DecodeStatus.NO_ROOM in bench.statuses
        for i in range(6):
            assert bench.done(i).stop_type is StopType.LIMIT
            assert len(bench.tokens(i)) == n_predict
            assert bench.text(i).strip()


def tokens_alone(model, one):
    return [probs.chosen.id for probs in alone(model, one)]
