"""Guided requests on real libllama: what two contexts and numpy make of them, and a context that grows."""

from __future__ import annotations

import ctypes
import threading
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from corral.core.chunk import DecodeStatus
from corral.core.modifier import ScaledFile
from corral.core.params import Constraint, Guidance, SamplingParams
from corral.core.result import Done, Failed, StopType
from corral.core.task import Cancel, SlotAction, Verb
from corral.engine.adapter import load_adapters
from corral.engine.prefix import MIN_REUSE
from corral.llama.library import LlamaError
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, alone, task
from tests.model.raw import _open
from tests.model.slot_actions import file_of, held, restore, save
from tests.tools.failure import status_of
from tests.tools.tiny_vectors import direction, write_vector

TINY = ["llama-bpe", "llama-spm", "gemma-swa", "mamba"]
CUTTABLE = TINY[:3]
RESTORABLE = TINY[:2]
SHAPES: dict[str, Any] = {
    "one slot": {"n_parallel": 1},
    "two slots": {"n_parallel": 2},
    "unified": {"n_parallel": 1, "kv_unified": True, "n_ctx": 1024},
    "two unified": {"n_parallel": 2, "kv_unified": True, "n_ctx": 1024},
}
SAMPLERS: dict[str, Any] = {
    "greedy": GREEDY,
    "seeded": msgspec.structs.replace(SEEDED, repeat_penalty=1.3, top_k=20, seed=3),
}
SCALE = 1.8
EXACT: dict[str, Any] = {
    "cache_type_k": "f32",
    "cache_type_v": "f32",
}  # sums in another order then differ by next to nothing


def on(*names):
    return pytest.mark.parametrize("model", names, indirect=True)


in_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
either_kv = pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])


def guided(id, prompt, negative, sampling=GREEDY, scale=SCALE, **params):
    return task(id, prompt, sampling, guidance=Guidance(scale, tuple(negative)), **params)


def tokens_alone(model, one, **options):
    return [probs.chosen.id for probs in alone(model, one, **options)]


# --- the reference


class Plain:
    """A sequence in a context of its own, evaluated by libllama alone."""

    def __init__(self, context, n_vocab, n_ctx):
        self._context, self._n_vocab, self._n_ctx = context, n_vocab, n_ctx

    def row(self, tokens):
        """What follows these; a full context has been shifted before."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        assert lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens))) == 0
        logits = lib.llama_get_logits_ith(self._context, -1)
        row = np.ctypeslib.as_array(logits, shape=(self._n_vocab,)).astype(np.float64)
        return row - row.max() - np.log(np.exp(row - row.max()).sum())

    def make_room(self, n_keep, n_discard):
        memory = lib.llama_get_memory(self._context)
        if lib.llama_memory_seq_pos_max(memory, 0) + 2 >= self._n_ctx:
            lib.llama_memory_seq_rm(memory, 0, n_keep, n_keep + n_discard)
            lib.llama_memory_seq_add(memory, 0, n_keep + n_discard, -1, -n_discard)


def raw_guided(model, one, choose, n_ctx=512, n_keep=0, n_discard=0, **types):
    """The tokens of a guided task: two contexts, their logits put together in double precision."""
    guidance, said = one.params.guidance, []
    with ExitStack() as stack:
        pair = [Plain(*stack.enter_context(_open(model, n_ctx, **types)), n_ctx) for _ in range(2)]
        pending = [list(one.prompt), list(guidance.negative)]
        while len(said) < one.params.n_predict:
            for sequence in pair:
                sequence.make_room(n_keep, n_discard)
            ours, theirs = (sequence.row(tokens) for sequence, tokens in zip(pair, pending, strict=True))
            said.append(choose(theirs + guidance.scale * (ours - theirs), len(said)))
            pending = [said[-1:]] * 2
    return said


def chooser(bench, one):
    """The server's own sampler: it is not what is tried here."""
    sampler = bench.backend.open_sampler(one.params.sampling, one.prompt)
    return lambda row, index: sampler.sample(row.astype(np.float32), index)[0]


@on(*TINY)
@in_shapes
@pytest.mark.parametrize("sampling", SAMPLERS.values(), ids=SAMPLERS)
def test_tokens_are_those_of_two_contexts_put_together(model, shape, sampling):
    with LlamaHarness(model, **shape, **EXACT) as bench:
        one = guided(0, bench.prompt(60), bench.prompt(35, seed=1), sampling)
        bench.run(one)
        types = {"type_k": lib.GGML_TYPE_F32, "type_v": lib.GGML_TYPE_F32}
        assert bench.tokens(0) == raw_guided(model, one, chooser(bench, one), **types)
        assert bench.tokens(0) != tokens_alone(model, task(0, one.prompt, sampling))
        assert bench.done(0).stop_type is StopType.LIMIT


@on("default")
def test_tokens_of_a_real_model(model):
    with LlamaHarness(model) as bench:
        tokenize = bench.backend.vocab.tokenize
        prompt = tokenize("Answer politely: where is the station?\n", True, True)
        negative = tokenize("Answer rudely: where is the station?\n", True, True)
        one = guided(0, prompt, negative, n_predict=12)
        bench.run(one)
        expected = raw_guided(model, one, lambda row, _: int(row.argmax()))
        ends = [i + 1 for i, token in enumerate(expected) if bench.backend.vocab.is_eog(token)]
        assert bench.tokens(0) == expected[: min(ends, default=12)]


@on("llama-bpe")
@pytest.mark.parametrize("scale", [-1.0, 0.0, 0.5, 1.0, 4.0])
def test_scales(model, scale):
    with LlamaHarness(model) as bench:
        prompt, negative = bench.prompt(60), bench.prompt(35, seed=1)
        one = guided(0, prompt, negative, scale=scale)
        bench.run(one)
        assert bench.tokens(0) == raw_guided(model, one, lambda row, _: int(row.argmax()))
        if scale in (0.0, 1.0):
            bench.run(task(1, prompt if scale else negative, n_predict=1))
            assert bench.tokens(1) == bench.tokens(0)[:1]


@on("llama-bpe", "llama-spm")
def test_probabilities_are_those_of_what_was_put_together(model):
    with LlamaHarness(model) as bench:
        one = guided(0, bench.prompt(60), bench.prompt(35, seed=1), n_predict=1)
        rows = []
        raw_guided(model, one, lambda row, _: rows.append(row) or 0)
        bench.run(one)
        (probs,) = bench.answer(0)
        expected = np.exp(rows[0] - rows[0].max())
        expected /= expected.sum()
        assert probs.top[0].id == expected.argmax()
        assert all(abs(top.prob - expected[top.id]) < 1e-3 for top in probs.top)


@on(*CUTTABLE)
def test_each_context_is_shifted_when_it_is_full(model):
    """Of 256: the negative one after 66 tokens, the other one after 186, then both again and again."""
    n_keep, n_discard = 5, 100
    with LlamaHarness(model, n_ctx_slot=256, context_shift=True) as bench:
        one = guided(
            0,
            bench.prompt(70),
            bench.prompt(190, seed=1),
            n_predict=400,
            n_keep=n_keep,
            n_discard=n_discard,
        )
        bench.run(one)
        kept = n_keep + bench.backend.vocab.adds_bos
        expected = raw_guided(model, one, lambda row, _: int(row.argmax()), 256, kept, n_discard)
        assert bench.tokens(0) == expected
        assert bench.done(0).truncated


@on("llama-bpe")
def test_a_grammar_forces_tokens_upon_both(model):
    text = "the hill is not for you, "
    with LlamaHarness(model) as bench:
        constraint = Constraint(kind="gbnf", text=f'root ::= ("{text}" [a-z]){{3}}', field="grammar")
        sampling = SamplingParams(temperature=0.0)
        one = guided(
            0, bench.prompt(40), bench.prompt(30, seed=1), sampling, n_predict=-1, constraint=constraint
        )
        bench.run(one)
        assert bench.text(0).count(text) == 3
        assert bench.done(0).timings.forced_n > 10
        said = bench.tokens(0)
        assert held(bench, 0)[40:] == held(bench, 1)[30:] == said[: len(held(bench, 0)) - 40]


@on(*TINY)
@either_kv
def test_whoever_is_beside_a_pair_answers_as_if_alone(model, unified):
    shape = {"n_parallel": 3, "n_ctx": 1536, "kv_unified": unified, **EXACT}
    with LlamaHarness(model, **shape) as bench:
        prompt, negative = bench.prompt(40), bench.prompt(50, seed=1)
        tasks = [
            task(0, bench.prompt(30, seed=2), SEEDED, n_predict=20),
            guided(1, prompt, negative, SEEDED, n_predict=12),
            guided(2, bench.prompt(45, seed=3), prompt, SEEDED, n_predict=16),
        ]
        bench.run(*tasks)
        for one in tasks:
            assert bench.tokens(one.id) == tokens_alone(model, one, **shape)


@on(*RESTORABLE)
def test_answers_with_the_same_prompts_evaluate_each_once(model):
    with LlamaHarness(model, n_parallel=3) as bench:
        prompt, negative = bench.prompt(60), bench.prompt(50, seed=1)
        tasks = [
            guided(i, prompt, negative, msgspec.structs.replace(SEEDED, seed=i), n_predict=8)
            for i in range(3)
        ]
        bench.run(*tasks)
        assert sum(bench.chunk_sizes) == len(prompt) + len(negative)
        for one in tasks:
            assert bench.tokens(one.id) == tokens_alone(model, one, n_parallel=3)


@on(*CUTTABLE)
def test_a_negative_prompt_is_not_evaluated_again(model):
    with LlamaHarness(model) as bench:
        negative = bench.prompt(90, seed=1)
        bench.run(guided(0, bench.prompt(60), negative))
        n_before = sum(bench.chunk_sizes)
        second = guided(1, bench.prompt(50, seed=2), negative)
        bench.run(second)
        assert sum(bench.chunk_sizes) - n_before < 50 + MIN_REUSE
        assert bench.answer(1) == alone(model, second)


@on(*RESTORABLE)
def test_a_negative_prompt_that_had_to_yield_comes_back(model):
    with LlamaHarness(model) as bench:
        first = guided(0, bench.prompt(60), bench.prompt(90, seed=1))
        bench.run(first)
        bench.run(guided(1, bench.prompt(50, seed=2), bench.prompt(80, seed=3)))
        n_before = sum(bench.chunk_sizes)
        again = msgspec.structs.replace(first, id=2)
        bench.run(again)
        assert sum(bench.chunk_sizes) - n_before < 2 * MIN_REUSE
        assert bench.answer(2) == bench.answer(0)


@on(*TINY)
def test_a_lost_engine_goes_on_where_it_was(model):
    with LlamaHarness(model, batch_exact="on") as bench:
        one = guided(0, bench.prompt(60), bench.prompt(35, seed=1), SEEDED)
        bench.run(one)
        whole = bench.answer(0)
    for n in (1, 7, 23):
        resumed = msgspec.structs.replace(one, resume=[probs.chosen.id for probs in whole[:n]])
        assert alone(model, resumed, batch_exact="on") == whole[n:]


@on("llama-bpe")
def test_as_many_pairs_as_there_are_slots_fit_into_a_batch(model):
    with LlamaHarness(model, n_parallel=20, n_batch=20, n_ubatch=20, n_ctx_slot=256) as bench:
        tasks = [
            guided(i, bench.prompt(9, seed=i), bench.prompt(9, seed=99), n_predict=30) for i in range(20)
        ]
        bench.run(*tasks)
        assert max(len(chunks) for chunks, _ in bench.decodes) == 40
        for one in tasks[::7]:
            assert bench.tokens(one.id) == raw_guided(model, one, lambda row, _: int(row.argmax()))


@on("llama-bpe")
def test_a_cancelled_pair_leaves_working_slots(model):
    with LlamaHarness(model) as bench:
        bench.engine.handle(guided(0, bench.prompt(60), bench.prompt(50, seed=1), n_predict=400))
        bench.step_until(lambda: len(bench.tokens(0)) == 5)
        bench.engine.handle(Cancel(0))
        assert not bench.engine.has_work
        after = guided(1, bench.prompt(50, seed=1), bench.prompt(60))
        bench.run(after)
        assert bench.answer(1) == alone(model, after)


@on("llama-bpe")
def test_pairs_that_do_not_fit_together_take_turns(model):
    with LlamaHarness(model, n_parallel=2, n_ctx=512, kv_unified=True) as bench:
        tasks = [
            guided(i, bench.prompt(80, seed=i), bench.prompt(90, seed=5 + i), n_predict=60) for i in range(2)
        ]
        for one in tasks:
            bench.engine.handle(one)
        bench.step_until(lambda: not bench.engine.has_work, max_steps=500)
        assert DecodeStatus.NO_ROOM in bench.statuses
        for one in tasks:
            assert bench.tokens(one.id) == raw_guided(model, one, lambda row, _: int(row.argmax()))


# --- a context that grows


@on(*TINY)
@in_shapes
def test_a_context_that_grows_keeps_its_sequences_to_the_bit(model, shape):
    n_slots = shape["n_parallel"]
    with LlamaHarness(model, **shape) as bench:
        tasks = [task(i, bench.prompt(40 + i, seed=i), SEEDED, n_predict=30) for i in range(n_slots)]
        for one in tasks:
            bench.engine.handle(one)
        bench.step_until(lambda: len(bench.tokens(n_slots - 1)) == 10)
        before = [packed(bench, seq) for seq in range(n_slots)]
        bench.backend.reserve(2 * n_slots)
        assert bench.backend.n_seq == 2 * n_slots
        assert bench.backend.n_ctx == (1024 if "n_ctx" in shape else 512)
        assert [packed(bench, seq) for seq in range(n_slots)] == before
        bench.run()
        answers = [bench.answer(one.id) for one in tasks]
    with LlamaHarness(model, **shape) as bench:
        bench.run(*tasks)
        assert [bench.answer(one.id) for one in tasks] == answers


def packed(bench, seq):
    return b"".join(bench.backend.pack(bench.backend.save(seq)))


@on(*TINY)
@either_kv
def test_a_stream_does_not_notice_the_first_pair(model, unified):
    shape = {"n_parallel": 2, "n_ctx": 1024, "kv_unified": unified, **EXACT}
    with LlamaHarness(model, **shape) as bench:
        one = task(0, bench.prompt(40), SEEDED, n_predict=40)
        bench.engine.handle(one)
        bench.step_until(lambda: len(bench.tokens(0)) == 10)
        pair = guided(1, bench.prompt(30, seed=2), bench.prompt(25, seed=3), SEEDED)
        bench.run(pair)
        assert bench.tokens(0) == tokens_alone(model, one, **shape)
        assert bench.tokens(1) == tokens_alone(model, pair, **shape)


@on(*TINY)
def test_a_context_grows_while_it_is_empty_and_never_shrinks(model):
    with LlamaHarness(model) as bench:
        bench.backend.reserve(2)
        handle = bench.backend.handle
        for n_seq in (0, 1, 2):
            bench.backend.reserve(n_seq)
        assert bench.backend.handle == handle
        one = task(0, bench.prompt(40))
        bench.run(one)
        assert bench.answer(0) == alone(model, one)


@on(*CUTTABLE)
@either_kv
def test_a_context_grows_right_after_a_copy(model, unified):
    """With split KV libllama has not carried it out yet."""
    with LlamaHarness(model, n_parallel=2, kv_unified=unified, n_ctx=1024) as bench:
        prompt = bench.prompt(60)
        bench.run(task(0, prompt, id_slot=0, n_predict=1))
        bench.kv.copy(bench.slots[0], bench.slots[1], 50)
        bench.backend.reserve(4)
        longer = task(1, [*prompt[:50], *bench.prompt(20, seed=1)], id_slot=1)
        bench.run(longer)
        assert bench.n_cached(1) >= 44
        assert bench.tokens(1) == tokens_alone(model, longer, n_parallel=2)


@on(*RESTORABLE)
def test_a_shifted_context_grows(model):
    options = {"n_ctx_slot": 256, "context_shift": True}
    with LlamaHarness(model, **options) as bench:
        one = task(0, bench.prompt(50), SEEDED, n_predict=400, n_keep=3)
        bench.engine.handle(one)
        bench.step_until(lambda: len(bench.tokens(0)) == 300)
        bench.backend.reserve(2)
        bench.run()
        assert bench.answer(0) == alone(model, one, **options)


@on("llama-bpe")
def test_a_prompt_goes_on_in_the_middle_when_the_context_grows(model):
    with LlamaHarness(model, n_ubatch=32) as bench:
        one = task(0, bench.prompt(200))
        bench.engine.handle(one)
        bench.step()
        bench.step()
        assert 0 < len(held(bench, 0)) < 200
        bench.backend.reserve(2)
        bench.run()
        assert bench.answer(0) == alone(model, one)


@on(*RESTORABLE)
@in_shapes
def test_what_waits_in_memory_can_be_used_after_the_context_grew(model, shape):
    with LlamaHarness(model, **shape) as bench:
        first = task(0, bench.prompt(90), SEEDED, id_slot=0)
        bench.run(first)
        bench.run(task(1, bench.prompt(90, seed=1), id_slot=0))
        bench.run(guided(2, bench.prompt(80, seed=2), bench.prompt(70, seed=3), id_slot=0))
        bench.run(msgspec.structs.replace(first, id=3))
        assert bench.n_cached(3) > 90 - MIN_REUSE
        assert bench.tokens(3) == bench.tokens(0)


@on(*RESTORABLE, "mamba")
@in_shapes
def test_states_are_saved_and_restored_on_both_sides_of_the_growth(model, shape):
    with LlamaHarness(model, **shape) as bench, LlamaHarness(model, n_parallel=3) as other:
        bench.run(task(0, bench.prompt(70), SEEDED, id_slot=0))
        tokens = held(bench, 0)
        early = save(bench, 0)
        bench.backend.reserve(2 * shape["n_parallel"])
        late = save(bench, 0)
        assert late == early
        for blob in (early, late):
            for where in (bench, other):
                restore(where, blob, 0, is_ours=True)
                assert held(where, 0) == tokens
        turn = task(1, [*tokens, *bench.prompt(20, seed=1)], SEEDED, id_slot=0)
        bench.run(turn)
        other.run(turn)
        assert bench.n_cached(1) == other.n_cached(1) > len(tokens) - MIN_REUSE
        assert bench.answer(1) == other.answer(1)


@on(*RESTORABLE)
@pytest.mark.parametrize("n_parallel", [1, 24])
def test_a_state_that_is_being_read_while_the_context_grows_comes_in(model, n_parallel, monkeypatch):
    with LlamaHarness(model, n_parallel, n_ctx_slot=256) as bench:
        bench.run(task(0, bench.prompt(70), SEEDED))
        tokens, blob = held(bench, 0), save(bench, 0)
        bench.run(task(1, bench.prompt(60, seed=1), cache_prompt=False))
        unpack, may_go_on, began = bench.backend.unpack, threading.Event(), threading.Event()

        def late(*args):
            began.set()
            assert may_go_on.wait(60)
            return unpack(*args)

        monkeypatch.setattr(bench.backend, "unpack", late)
        action = SlotAction(id=100, verb=Verb.RESTORE, slot=0, fd=file_of(blob), is_ours=True)
        bench.engine.handle(action)
        while not began.is_set():
            bench.step()
        bench.backend.reserve(2 * n_parallel)
        may_go_on.set()
        bench.run()
        (answer,) = [event for event in bench.events if event.task_id == 100]
        assert not isinstance(answer, Failed), answer
        assert held(bench, 0) == tokens


@on(*TINY)
@in_shapes
def test_where_there_is_no_memory_for_more_the_request_fails_and_nothing_else_does(model, shape, monkeypatch):
    with LlamaHarness(model, **shape) as bench:
        one = task(0, bench.prompt(40), SEEDED, n_predict=30)
        bench.engine.handle(one)
        bench.step_until(lambda: len(bench.tokens(0)) == 10)
        with monkeypatch.context() as patch:
            patch.setattr(bench.backend, "_open", refuse)
            pair = guided(1, bench.prompt(30, seed=1), bench.prompt(20, seed=2))
            bench.engine.handle(pair)
            bench.run()
        (failed,) = bench.of(1, Failed)
        assert status_of(failed) == 500
        assert failed.error.message == "cannot create a context"
        assert not bench.of(1, Done)
        assert bench.backend.n_seq == shape["n_parallel"]
        assert len(bench.slots) == shape["n_parallel"]
        assert bench.answer(0) == alone(model, one, **shape)
        again = msgspec.structs.replace(pair, id=2)
        bench.run(again)
        assert bench.tokens(2) == tokens_alone(model, again, **shape)


def refuse():
    raise LlamaError("cannot create a context")


@on("llama-bpe")
def test_sequences_that_share_their_cells_still_fit_when_the_context_grows(model):
    """Three times 150 tokens of one prompt are 150 cells of 512; each for itself they would be too many."""
    with LlamaHarness(model, n_parallel=3, n_ctx=512, kv_unified=True) as bench:
        prompt = bench.prompt(150)
        tasks = [task(i, prompt, msgspec.structs.replace(SEEDED, seed=i), n_predict=40) for i in range(3)]
        for one in tasks:
            bench.engine.handle(one)
        bench.step_until(lambda: all(len(bench.tokens(i)) >= 25 for i in range(3)))
        pair = guided(3, bench.prompt(20, seed=1), bench.prompt(20, seed=2), n_predict=4)
        bench.run(pair)
        for one in tasks:
            assert bench.tokens(one.id) == tokens_alone(model, one, n_parallel=3, n_ctx=512, kv_unified=True)
        assert len(bench.of(3, Done) + bench.of(3, Failed)) == 1


@on("llama-bpe")
def test_a_state_that_is_lost_on_the_way_loses_nothing(model, monkeypatch):
    """If the larger context does not take a sequence, the smaller one stays."""
    with LlamaHarness(model) as bench:
        one = task(0, bench.prompt(40), SEEDED, n_predict=30)
        bench.engine.handle(one)
        bench.step_until(lambda: len(bench.tokens(0)) == 10)
        with monkeypatch.context() as patch:
            patch.setattr(lib, "llama_state_seq_set_data", lambda *_: 0)
            bench.engine.handle(guided(1, bench.prompt(30, seed=1), bench.prompt(20, seed=2)))
        bench.run()
        assert bench.of(1, Failed)
        assert bench.answer(0) == alone(model, one)


def test_adapters_still_apply_in_a_context_that_grew(modifiers):
    def answer(grows, n_parallel=1):
        with LlamaHarness(modifiers / "llama-bpe.gguf", n_parallel=n_parallel) as bench:
            files = [ScaledFile(str(modifiers / f"lora-{name}.gguf")) for name in "ab"]
            assert not any(info.error for info in load_adapters(bench.backend.adapters, files))
            bench.engine.handle(task(0, bench.prompt(40), SEEDED, lora=((0, 1.0), (1, 0.5)), n_predict=30))
            bench.step_until(lambda: len(bench.tokens(0)) == 10)
            if grows:
                bench.backend.reserve(2)
            bench.run()
            return bench.answer(0)

    assert answer(True) == answer(False)


def test_adapters_apply_to_both(modifiers):
    merged = modifiers / "merged-a.gguf"
    with LlamaHarness(modifiers / "llama-bpe.gguf") as bench:
        load_adapters(bench.backend.adapters, [ScaledFile(str(modifiers / "lora-a.gguf"))])
        one = guided(0, bench.prompt(40), bench.prompt(30, seed=1), lora=((0, 1.0),))
        bench.run(one)
        assert bench.tokens(0) == raw_guided(merged, one, lambda row, _: int(row.argmax()))


def test_control_vectors_still_apply_in_a_context_that_grew(deep, tmp_path):
    path = write_vector(tmp_path / "one.gguf", {f"direction.{i}": direction(i) for i in (1, 2, 3)})
    answers = []
    for grows in (True, False):
        with LlamaHarness(deep, control_vectors=(ScaledFile(str(path)),)) as bench:
            if grows:
                bench.backend.reserve(2)
            bench.run(task(0, bench.prompt(40)))
            answers.append(bench.answer(0))
    assert answers[0] == answers[1] != alone(deep, task(0, bench.prompt(40)))
