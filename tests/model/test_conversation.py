"""Laws of conversation state on real libllama: save, restart, restore, continue equals continue."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as lib

from corral.core.chunk import DecodeStatus, common_prefix
from corral.core.result import Admitted, Failed, SlotReport, StopType, Tier
from corral.core.task import SlotAction, Stop, Verb
from tests.model import raw
from tests.model.llama_harness import SEEDED, LlamaHarness, alone, task
from tests.model.slot_actions import (
    WAYS,
    act,
    assert_report,
    chosen,
    file_of,
    forked,
    forked_and_continued,
    go_on,
    held,
    moved,
    on,
    pruned,
    read,
    refuse,
    refuse_restore,
    restore,
    save,
    shifted_by_itself,
)

TINY = ["llama-bpe", "llama-spm", "gemma-swa", "mamba"]
SHIFTABLE = TINY[:3]
EXACT = TINY[:2]  # go on to the bit where they were, wherever they are cut and restored

few_examples = settings(max_examples=20, deadline=None, derandomize=True, database=None)


# Conversations: each leaves one in a slot of three, of fewer than 212 tokens in a context of 256.


def plain(bench, slot):
    bench.run(task(0, bench.prompt(70), id_slot=slot))


def pruned_and_continued(bench, slot):
    pruned(bench, slot)
    bench.run(task(1, [*held(bench, slot), *bench.prompt(12, seed=1)], id_slot=slot))


def shifted_then_pruned(bench, slot):
    shifted_by_itself(bench, slot)
    act(bench, Verb.SHIFT, slot, n_keep=4, n_discard=21)


UNCUT = [plain, forked, forked_and_continued]
SHIFTED = [shifted_by_itself, pruned, pruned_and_continued, shifted_then_pruned, moved]
HERE = {"n_ctx_slot": 256, "n_parallel": 3, "context_shift": True}
ELSEWHERE: dict[str, Any] = {
    "one slot": ({"n_ctx_slot": 256}, 0),
    "four slots": ({"n_ctx_slot": 256, "n_parallel": 4}, 1),
    "unified": ({"n_ctx": 768, "n_parallel": 2, "kv_unified": True}, 1),
}


each_way = pytest.mark.parametrize("way", WAYS)


@on(*TINY)
@pytest.mark.parametrize("conversation", UNCUT)
def test_a_restored_conversation_goes_on_as_if_nothing_happened(model, conversation):
    assert_goes_on_everywhere(model, conversation, "pinned")


@pytest.mark.one_in(3)
@on(*EXACT)
@pytest.mark.parametrize("conversation", SHIFTED)
@each_way
def test_a_restored_conversation_goes_on_after_a_shift(model, conversation, way):
    assert_goes_on_everywhere(model, conversation, way)


@pytest.mark.one_in(3)
@on("gemma-swa")
@pytest.mark.parametrize("conversation", SHIFTED)
@each_way
def test_a_restored_conversation_with_a_window_goes_on_after_a_shift(model, conversation, way):
    assert_goes_on_everywhere(model, conversation, way)


def assert_goes_on_everywhere(model, conversation, way):
    """Without having been saved, after it, and restored in other engines."""
    with LlamaHarness(model, **HERE) as bench:
        conversation(bench, 2)
        n_cached, expected = go_on(bench, 2, way)
    assert len(expected) == 24
    with LlamaHarness(model, **HERE) as bench:
        conversation(bench, 2)
        blob, tokens = save(bench, 2), held(bench, 2)
        assert go_on(bench, 2, way) == (n_cached, expected)
    for where, (options, slot) in ELSEWHERE.items():
        with LlamaHarness(model, **options, context_shift=True) as bench:
            assert restore(bench, blob, slot).n_tokens == len(tokens)
            assert held(bench, slot) == tokens
            n, answer = go_on(bench, slot, way)
            assert chosen(answer) == chosen(expected)
            if model.stem in EXACT:
                assert n == n_cached
                assert answer == expected or where == "unified"


BLOCK = st.integers(0, 3)
SLOT = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.tuples(st.just("ask"), SLOT, st.lists(BLOCK, min_size=1, max_size=4), st.integers(1, 150)),
    st.tuples(st.just("continue"), SLOT, BLOCK, st.integers(1, 150)),
    st.tuples(st.just("drop"), SLOT, st.integers(1, 30), st.integers(1, 20)),
    st.tuples(st.just("shift"), SLOT, st.floats(0, 1), st.floats(0, 1)),
    st.tuples(st.just("fork"), SLOT, st.integers(1, 2)),
    st.tuples(st.just("erase"), SLOT),
)


@given(name=st.sampled_from(EXACT), operations=st.lists(OPERATIONS, min_size=3, max_size=7))
@few_examples
def test_a_restart_between_any_two_operations_changes_nothing(models, name, operations):
    path = models / f"{name}.gguf"
    options = {**HERE, "cache_ram_mib": 0}
    with LlamaHarness(path, **options) as steady:
        blobs = []
        for i, operation in enumerate(operations):
            with LlamaHarness(path, **options) as bench:
                for slot, blob in enumerate(blobs):
                    restore(bench, blob, slot, is_ours=True)
                for where in (steady, bench):
                    operate(where, i, *operation)
                    assert not where.of(i, Failed)
                assert bench.answer(i) == steady.answer(i)
                assert [held(bench, slot) for slot in range(3)] == [held(steady, slot) for slot in range(3)]
                blobs = [save(bench, slot) for slot in range(3)]


def operate(bench, i, what, slot, *args):
    tokens = held(bench, slot)
    if what == "ask":
        blocks, n_predict = args
        prompt = [token for block in blocks for token in bench.prompt(40, seed=block)]
        bench.run(task(i, prompt, n_predict=n_predict, id_slot=slot, n_keep=4))
    elif what == "continue":
        block, n_predict = args
        prompt = [*tokens[:200], *bench.prompt(20, seed=block)]
        bench.run(task(i, prompt, n_predict=n_predict, id_slot=slot))
    elif what == "drop":
        start, n = (4 * arg for arg in args)
        prompt = [*tokens[:start], *tokens[start + n :][:200], *bench.prompt(10)][:250]
        bench.run(task(i, prompt, n_predict=8, id_slot=slot, n_cache_reuse=8))
    elif what == "shift":
        n_keep = int(args[0] * len(tokens))
        n_discard = int(args[1] * (len(tokens) - n_keep))
        act(bench, Verb.SHIFT, slot, n_keep=n_keep, n_discard=n_discard)
    elif what == "fork":
        act(bench, Verb.FORK, slot, source=(slot + args[0]) % 3)
    else:
        act(bench, Verb.ERASE, slot)


# Actions


@on(*SHIFTABLE)
@pytest.mark.parametrize(("n_keep", "n_discard"), [(0, 30), (10, 37), (90, 60), (40, 1)])
def test_an_explicit_shift_is_what_libllama_does(model, n_keep, n_discard):
    with LlamaHarness(model, n_parallel=2, n_ctx_checkpoints=0) as bench:
        prompt, more = bench.prompt(150), bench.prompt(20, seed=1)
        bench.run(task(0, prompt, n_predict=0, id_slot=0))
        left = [*prompt[:n_keep], *prompt[n_keep + n_discard :]]
        assert act(bench, Verb.SHIFT, 0, n_keep=n_keep, n_discard=n_discard).n_tokens == len(left)
        assert held(bench, 0) == left
        bench.run(task(1, [*left, *more], id_slot=0))
        n_reused = bench.n_cached(1)
        assert len(left) - 4 < n_reused <= len(left)
        assert bench.chunk_sizes == [150, 150 - n_discard + len(more) - n_reused]
        moves = [(n_keep + n_discard, n_keep, len(left) - n_keep)]
        rest = [*left, *more][n_reused:]
        assert bench.tokens(1)[:12] == raw_moved(model, prompt, moves, n_reused, rest, 12)


@on("llama-bpe")
def test_a_shift_may_leave_nothing(model):
    with LlamaHarness(model) as bench:
        bench.run(task(0, bench.prompt(40), n_predict=0))
        assert act(bench, Verb.SHIFT, n_keep=0, n_discard=40).n_tokens == 0
        one = task(1, bench.prompt(40))
        bench.run(one)
        assert bench.answer(1) == alone(model, one)


@on("mamba")
def test_what_cannot_be_shifted_is_left_alone(model):
    with LlamaHarness(model) as bench:
        bench.run(task(0, bench.prompt(40)))
        tokens = held(bench, 0)
        assert refuse(bench, Verb.SHIFT, n_keep=1, n_discard=1).status == 501
        assert held(bench, 0) == tokens


@on("llama-bpe")
def test_actions_that_cannot_be_are_refused_and_change_nothing(model):
    with LlamaHarness(model, n_parallel=2) as bench:
        bench.run(task(0, bench.prompt(40), id_slot=0))
        tokens = held(bench, 0)
        assert refuse(bench, Verb.SHIFT, n_keep=1, n_discard=len(tokens)).status == 400
        assert refuse(bench, Verb.FORK, 0, source=0).status == 400
        for verb in (Verb.TOKENS, Verb.ERASE, Verb.SHIFT):
            assert refuse(bench, verb, 2).status == 404
        assert refuse(bench, Verb.FORK, 0, source=7).status == 404
        assert act(bench, Verb.TOKENS, 0).tokens == held(bench, 0) == tokens


@on(*TINY)
def test_a_fork_evaluates_nothing_and_both_go_on_alone(model):
    with LlamaHarness(model, n_parallel=3) as bench:
        bench.run(task(0, bench.prompt(90), id_slot=0))
        tokens = held(bench, 0)
        n_evaluated = sum(bench.chunk_sizes)
        assert act(bench, Verb.FORK, 2, source=0).n_tokens == len(tokens)
        assert act(bench, Verb.FORK, 1, source=2).n_tokens == len(tokens)
        assert sum(bench.chunk_sizes) == n_evaluated
        assert held(bench, 1) == held(bench, 2) == tokens
        turns = [task(1 + i, [*tokens, *bench.prompt(20, seed=i + 1)], id_slot=i) for i in range(3)]
        bench.run(*turns)
        assert sum(bench.chunk_sizes) < n_evaluated + 3 * (20 + 4)
        for turn in turns:
            with LlamaHarness(model) as single:
                single.run(task(0, bench.prompt(90)), task(turn.id, turn.prompt))
                assert single.tokens(0) == bench.tokens(0)
                assert single.tokens(turn.id) == bench.tokens(turn.id)
                if model.stem in EXACT:
                    assert single.answer(turn.id) == bench.answer(turn.id)


@on(*TINY)
def test_a_fork_can_be_saved_at_once(model):
    with LlamaHarness(model, n_parallel=2) as bench:
        bench.run(task(0, bench.prompt(70), id_slot=0))
        tokens = held(bench, 0)
        act(bench, Verb.FORK, 1, source=0)
        blob = save(bench, 1)
        assert held(bench, 0) == held(bench, 1) == tokens
        with LlamaHarness(model) as other:
            restore(other, blob)
            expected = chosen(go_on(other, 0)[1])
            assert chosen(go_on(bench, 0)[1]) == chosen(go_on(bench, 1)[1]) == expected


@on("llama-bpe")
def test_an_empty_slot_is_saved_as_an_empty_one(model):
    with LlamaHarness(model, n_parallel=2) as bench:
        bench.run(task(0, bench.prompt(40), id_slot=0))
        blob = save(bench, 1)
        assert restore(bench, blob, 0, is_ours=True).n_tokens == 0
        assert held(bench, 0) == []


@on("llama-bpe")
def test_what_is_asked_after_a_restore_finds_it_done(model, monkeypatch):
    with LlamaHarness(model) as bench:
        prompt = bench.prompt(100)
        bench.run(task(0, prompt, n_predict=0))
        blob = save(bench, 0)
        act(bench, Verb.ERASE)
        ses1, is_slow = bench.engine._actions._ses1, threading.Event()
        read = ses1.read
        monkeypatch.setattr(ses1, "read", lambda *args: is_slow.wait() and read(*args))
        bench.engine.handle(SlotAction(id=1, verb=Verb.RESTORE, slot=0, fd=file_of(blob)))
        bench.engine.handle(task(2, [*prompt, *bench.prompt(20, seed=1)]))
        for _ in range(3):
            bench.step()
        is_slow.set()
        bench.run()
        assert bench.n_cached(2) == 100


# Files


@on(*TINY)
def test_no_damaged_file_is_accepted(model):
    with LlamaHarness(model) as bench:
        prompt = bench.prompt(33)
        bench.run(task(0, prompt, n_predict=0))
        blob = save(bench, 0)
        n = len(blob)
        assert n > 8 << 10
        flips = [*range(64), *range(64, n, 512), *range(n - 64, n)]
        cuts = [*range(64), *range(64, n, 512), *range(n - 64, n)]
        before = held(bench, 0)
        damaged = [flip(blob, i, 1 << i % 8) for i in flips] + [blob[:i] for i in cuts] + [blob + b"\0"]
        for one in damaged:
            for is_ours in (True, False):
                assert refuse_restore(bench, one, is_ours=is_ours).status == 400
                assert held(bench, 0) == before
        assert restore(bench, blob, is_ours=True).n_tokens == len(prompt)
        refuse_restore(bench, damaged[-1])
        assert held(bench, 0) == before
        bench.run(task(1, prompt, SEEDED))
        assert bench.answer(1) == alone(model, task(1, prompt, SEEDED))


@on("llama-bpe")
def test_no_byte_of_a_file_may_change_and_none_be_missing(model):
    with LlamaHarness(model) as bench:
        bench.run(task(0, bench.prompt(3), n_predict=0))
        blob, before = save(bench, 0), held(bench, 0)
        for i in range(len(blob)):
            assert refuse_restore(bench, flip(blob, i, 0xFF)).status == 400
            assert refuse_restore(bench, blob[:i]).status == 400
        assert held(bench, 0) == before
        assert restore(bench, blob).n_tokens == 3


@on("llama-bpe")
def test_a_count_that_was_flipped_to_nothing_is_refused(model):
    with LlamaHarness(model) as bench:
        bench.run(task(0, bench.prompt(64), n_predict=0))
        assert refuse_restore(bench, flip(save(bench, 0), 4, 64)).status == 400


@on("llama-spm")
def test_a_file_of_another_model_of_the_same_shape_is_refused(model, models):
    with LlamaHarness(models / "llama-bpe.gguf") as stranger, LlamaHarness(model) as bench:
        stranger.run(task(0, stranger.prompt(40)))
        assert max(held(stranger, 0)) < bench.backend.n_vocab, "or that would be the reason"
        assert "another model" in refuse_restore(bench, save(stranger, 0)).message
        assert held(bench, 0) == []


@on("llama-bpe")
def test_a_file_that_is_too_long_for_a_slot_is_refused(model):
    with LlamaHarness(model) as bench, LlamaHarness(model, n_parallel=2, n_ctx_slot=256) as small:
        bench.run(task(0, bench.prompt(300), n_predict=0))
        assert "--ctx-size" in refuse_restore(small, save(bench, 0)).message


@on(*SHIFTABLE, "mamba")
@pytest.mark.parametrize("options", [{}, {"n_parallel": 3}], ids=["one slot", "three slots"])
def test_a_state_that_another_program_saved_goes_on(model, options):
    with LlamaHarness(model, **options) as bench:
        prompt = bench.prompt(100)
        blob = raw_saved(model, prompt)
        assert "not saved by this server" in refuse_restore(bench, blob, is_ours=True).message
        assert restore(bench, blob, len(bench.slots) - 1).n_tokens == 100
        longer = task(1, [*prompt, *bench.prompt(20, seed=1)], id_slot=len(bench.slots) - 1)
        bench.run(longer)
        assert bench.n_cached(1) == 100
        assert chosen(bench.answer(1)) == chosen(alone(model, task(1, longer.prompt)))
        if model.stem in EXACT:
            assert bench.answer(1) == alone(model, task(1, longer.prompt))


@on("llama-bpe")
def test_a_state_of_another_program_has_its_tokens_where_they_belong(model):
    n = 40
    with LlamaHarness(model) as bench:
        blob = raw_saved(model, bench.prompt(n))
        start = 8 + 4 * n + 16  # behind the tokens, a magic, a sequence, the numbers of streams and of cells
        cells = np.ndarray((n, 3), "<i4", blob, start)
        assert cells[:, 0].tolist() == list(range(n))
        for change in (repeat_a_position, shift_positions, leave_a_gap, share_a_cell):
            strange = bytearray(blob)
            change(np.ndarray((n, 3), "<i4", strange, start))
            assert refuse_restore(bench, bytes(strange)).status == 400
            assert held(bench, 0) == []
        assert refuse_restore(bench, blob[:-1]).status == 400
        assert refuse_restore(bench, blob + b"\0").status == 400
        one_less = blob[:4] + struct.pack("<I", n - 1) + blob[8 : 4 + 4 * n] + blob[8 + 4 * n :]
        assert refuse_restore(bench, one_less).status == 400
        strange = bytearray(blob)
        np.ndarray(n, "<i4", strange, 8)[7] = bench.backend.n_vocab
        assert "outside this model's vocabulary" in refuse_restore(bench, bytes(strange)).message


def repeat_a_position(cells):
    cells[7, 0] = 8


def shift_positions(cells):
    cells[:, 0] += 1


def leave_a_gap(cells):
    cells[20:, 0] += 5


def share_a_cell(cells):
    cells[7, 1] = 2


# Tiers


@on(*TINY)
def test_a_prompt_comes_back_from_memory_and_from_disk(model, tmp_path):
    with LlamaHarness(model, cache_disk=str(tmp_path)) as bench:
        prompt = bench.prompt(91)
        longer = task(2, [*prompt, *bench.prompt(20, seed=2)], cache_report=True)
        expected = alone(model, longer)
        bench.run(task(0, prompt, n_predict=0))
        bench.run(task(1, bench.prompt(90, seed=1)))
        bench.run(longer)
        assert bench.answer(2) == expected
        assert_report(bench, 2, Tier.RAM, 88 if model.stem in EXACT else 91)
        bench.engine.handle(Stop())
    with LlamaHarness(model, cache_disk=str(tmp_path)) as bench:
        even_longer = task(
            3, [*longer.prompt, *chosen(expected)[:-1], *bench.prompt(20, seed=3)], cache_report=True
        )
        bench.run(even_longer)
        assert chosen(bench.answer(3)) == chosen(alone(model, even_longer))
        assert_report(bench, 3, Tier.DISK, 132 if model.stem in EXACT else 134)


@on(*TINY)
def test_what_memory_has_no_room_for_goes_to_disk_to_the_bit(model, tmp_path):
    options: dict[str, Any] = {"cache_disk": str(tmp_path), "cache_ram_mib": 0}
    with LlamaHarness(model, **options) as bench:
        prompt = bench.prompt(91)
        bench.run(task(0, prompt, n_predict=0))
        bench.run(task(1, bench.prompt(90, seed=1), n_predict=0))
        bench.run(longer := task(2, [*prompt, *bench.prompt(20, seed=2)], cache_report=True))
        assert_report(bench, 2, Tier.DISK, 88 if model.stem in EXACT else 91)
        bench.engine.handle(Stop())
        assert bench.answer(2) == alone(model, longer)
    with LlamaHarness(model, n_parallel=2, **options) as bench:
        bench.run(other := task(1, [*bench.prompt(90, seed=1), *bench.prompt(20, seed=2)], cache_report=True))
        assert_report(bench, 1, Tier.DISK, 88 if model.stem in EXACT else 90)
        expected = alone(model, other)
        assert chosen(bench.answer(1)) == chosen(expected)
        assert bench.answer(1) == expected or model.stem == "gemma-swa"


@on(*EXACT)
@pytest.mark.parametrize("n_shared", [70, 101, 130])
def test_any_beginning_of_a_file_gives_the_cold_answer(model, n_shared, tmp_path):
    fill_disk(model, tmp_path, 140)
    with LlamaHarness(model, cache_disk=str(tmp_path)) as bench:
        one = task(1, [*bench.prompt(140)[:n_shared], *bench.prompt(20, seed=5)], SEEDED, cache_report=True)
        bench.run(one)
        assert_report(bench, 1, Tier.DISK, n_shared - n_shared % 4)
        assert bench.answer(1) == alone(model, one)


DAMAGE: dict[str, Any] = {
    "a flipped byte of data": lambda data: flip(data, len(data) // 2, 1),
    "a flipped byte of a token": lambda data: flip(data, 8 + 4 * 139, 1),
    "a flipped byte at the end": lambda data: flip(data, len(data) - 30, 1),
    "a missing byte": lambda data: data[:-1],
    "a missing half": lambda data: data[: len(data) // 2],
    "nothing": lambda data: b"",
    "something else": lambda data: b"SES1" * 100,
}


@pytest.mark.one_in(3)
@on("llama-bpe", "mamba")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_of_the_cache_is_a_miss(model, damage, tmp_path):
    (path,) = fill_disk(model, tmp_path, 140)
    path.write_bytes(damage(path.read_bytes()))
    with LlamaHarness(model, cache_disk=str(tmp_path)) as bench:
        one = task(1, [*bench.prompt(140), *bench.prompt(20, seed=5)], cache_report=True)
        bench.run(one)
        assert_report(bench, 1, Tier.NONE, 0)
        assert bench.answer(1) == alone(model, one)


@on("llama-bpe")
def test_a_directory_may_serve_several_models(model, models, tmp_path):
    stranger = models / "llama-spm.gguf"
    fill_disk(stranger, tmp_path, 140)
    with LlamaHarness(stranger) as bench:
        prompt = [*bench.prompt(140), *bench.prompt(20, seed=5)]
    with LlamaHarness(model, cache_disk=str(tmp_path)) as bench:
        bench.run(one := task(1, prompt, cache_report=True))
        assert_report(bench, 1, Tier.NONE, 0)
        assert bench.answer(1) == alone(model, one)
        bench.engine.handle(Stop())
    with LlamaHarness(stranger, cache_disk=str(tmp_path)) as bench:
        bench.run(one)
        assert_report(bench, 1, Tier.DISK, 140)


@pytest.mark.parametrize("is_forked", [False, True])
@on("llama-bpe")
def test_everything_is_on_disk_in_the_end(model, is_forked, tmp_path):
    with LlamaHarness(model, n_parallel=2, cache_disk=str(tmp_path)) as bench:
        bench.run(task(0, bench.prompt(140), id_slot=0))
        if is_forked:
            act(bench, Verb.FORK, 1, source=0)
        bench.engine.handle(Stop())
    assert len(list(tmp_path.iterdir())) == 1


@on("llama-bpe")
def test_a_report_says_where_a_prompt_differs(model):
    with LlamaHarness(model, n_parallel=2) as bench:
        prompt = bench.prompt(100)
        bench.run(task(0, prompt, n_predict=0, id_slot=1))
        changed = [*prompt[:61], prompt[61] + 1, *prompt[62:]]
        bench.run(task(1, changed, id_slot=0, cache_report=True, n_predict=0))
        report = assert_report(bench, 1, Tier.LIVE, 60)
        assert (report.id_slot, report.n_common) == (1, 61)
        assert (report.token, report.cached_token) == (changed[61], prompt[61])


# Shifts and moves


@pytest.mark.one_in(3)
@on(*SHIFTABLE)
@pytest.mark.parametrize("n_shared", [30, 60])
@pytest.mark.parametrize("similarity", [0.0, 0.5], ids=["another slot", "the slot"])
def test_what_a_context_shift_has_moved_serves_nobody_else(model, n_shared, similarity):
    options = {
        "n_ctx_slot": 256,
        "n_parallel": 2,
        "context_shift": True,
        "slot_prompt_similarity": similarity,
    }
    with LlamaHarness(model, **options) as bench:
        n_kept = keep_forty_of_many(bench)
        one = task(1, [*held(bench, 0)[:n_shared], *bench.prompt(20, seed=1)])
        bench.run(one)
        assert bench.of(1, Admitted)[0].id_slot == int(similarity == 0)
        expected = alone(model, one, **options)
        assert chosen(bench.answer(1)) == chosen(expected)
        if model.stem in EXACT:
            assert bench.n_cached(1) == min(n_shared, n_kept) // 4 * 4
            assert bench.answer(1) == expected


@on(*EXACT)
def test_a_fork_knows_what_was_moved(model):
    options = {"n_ctx_slot": 256, "n_parallel": 2, "context_shift": True}
    with LlamaHarness(model, **options) as bench:
        keep_forty_of_many(bench)
        act(bench, Verb.FORK, 1, source=0)
        act(bench, Verb.ERASE, 0)
        one = task(1, [*held(bench, 1)[:60], *bench.prompt(20, seed=1)])
        bench.run(one)
        assert bench.n_cached(1) == 40
        assert bench.answer(1) == alone(model, one, **options)


@on("llama-bpe")
def test_what_a_context_shift_has_moved_serves_only_its_own_slot(model):
    options = {"n_ctx_slot": 256, "n_parallel": 2, "context_shift": True}
    with LlamaHarness(model, **options) as bench:
        keep_forty_of_many(bench)
        one = task(1, [*held(bench, 0)[:100], *bench.prompt(20, seed=1)], id_slot=1)
        bench.run(one)
        assert bench.answer(1) == alone(model, one, **options)


@on(*SHIFTABLE)
@pytest.mark.parametrize("way", [{"n_cache_reuse": 1}, {"id_slot": 0}], ids=["moved", "pinned"])
def test_what_a_context_shift_has_moved_serves_those_who_ask_for_it(model, way):
    with LlamaHarness(model, n_ctx_slot=256, context_shift=True) as bench:
        keep_forty_of_many(bench)
        tokens = held(bench, 0)
        bench.run(task(1, [*tokens, *bench.prompt(20, seed=1)], **way))
        assert len(tokens) - 4 < bench.n_cached(1) <= len(tokens)


def keep_forty_of_many(bench):
    """Let a context be shifted; returns how many tokens stayed where they were."""
    bench.run(task(0, bench.prompt(50), n_predict=280, n_keep=40, id_slot=0))
    assert bench.done(0).truncated
    return 40 + bench.backend.vocab.adds_bos


@on(*SHIFTABLE)
@pytest.mark.parametrize(
    ("n_before", "drops"),
    [
        (40, [(40, 80)]),
        (40, [(40, 41)]),
        (40, [(40, 60), (90, 111)]),
        (0, [(0, 60)]),
        (42, [(42, 80)]),
    ],
)
def test_a_prompt_without_its_middle_is_moved_as_llama_cpp_does(model, n_before, drops):
    """And only what is new is evaluated."""
    with LlamaHarness(model) as bench:
        prompt, more = bench.prompt(150), bench.prompt(21, seed=1)
        bench.run(task(0, prompt, n_predict=0))
        n_evaluated = sum(bench.chunk_sizes)
        ends = [start for start, _ in drops[1:]] + [150]
        runs = [(end, until) for (_, end), until in zip(drops, ends, strict=True)]
        left = [*prompt[:n_before], *(token for start, end in runs for token in prompt[start:end])]
        bench.run(task(1, [*left, *more], n_cache_reuse=8, cache_report=True))
        assert sum(bench.chunk_sizes) - n_evaluated == len(more)
        report = assert_report(bench, 1, Tier.LIVE, len(left))
        n_same = common_prefix(np.array(left), np.array(prompt))
        assert report.n_moved == len(left) - n_same
        moves, to = [], n_same
        for start, end in [(runs[0][0] + n_same - n_before, runs[0][1]), *runs[1:]]:
            moves.append((start, to, end - start))
            to += end - start
        assert bench.tokens(1)[:12] == raw_moved(model, prompt, moves, to, more, 12)


@pytest.mark.parametrize(
    ("n_cut", "n_cache_reuse"),
    [
        (40, 8),
        (42, 8),
        (40, 1),
        (42, 1),
    ],
)
@on("llama-bpe")
def test_a_report_of_moved_tokens_counts_what_was_not_evaluated(model, n_cut, n_cache_reuse):
    with LlamaHarness(model) as bench:
        prompt = bench.prompt(150)
        bench.run(task(0, prompt, n_predict=0))
        shorter = [*prompt[:n_cut], *prompt[80:], *bench.prompt(20, seed=1)]
        bench.run(task(1, shorter, n_cache_reuse=n_cache_reuse, cache_report=True))
        assert_report(bench, 1, Tier.LIVE, len(shorter) - (sum(bench.chunk_sizes) - 150))


@on(*EXACT)
def test_nothing_moves_unless_asked(model):
    with LlamaHarness(model) as bench:
        prompt = bench.prompt(150)
        bench.run(task(0, prompt, n_predict=0))
        shorter = task(1, [*prompt[:40], *prompt[80:]])
        bench.run(shorter)
        assert bench.n_cached(1) == 40
        assert bench.answer(1) == alone(model, shorter)


@on(*EXACT)
def test_moved_tokens_come_back_from_memory_only_for_those_who_ask(model):
    with LlamaHarness(model) as bench:
        prompt, more = bench.prompt(150), bench.prompt(20, seed=1)
        shorter = [*prompt[:40], *prompt[80:]]
        bench.run(task(0, prompt, n_predict=0))
        bench.run(task(1, [*shorter, *more], n_predict=0, n_cache_reuse=8))
        assert bench.n_cached(1) == 110
        bench.run(task(2, bench.prompt(90, seed=2)))
        bench.run(exact := task(3, [*shorter, *bench.prompt(20, seed=3)], cache_report=True))
        assert bench.n_cached(3) == 40
        assert bench.answer(3) == alone(model, exact)


@on("gemma-swa")
@pytest.mark.parametrize(("n_keep", "n_discard"), [(10, 170), (100, 80), (10, 120)])
def test_a_shift_after_a_restore_is_one_before_it_or_refused(model, n_keep, n_discard):
    with LlamaHarness(model) as bench, LlamaHarness(model) as other:
        bench.run(task(0, bench.prompt(200), n_predict=0))
        restore(other, save(bench, 0))
        act(bench, Verb.SHIFT, n_keep=n_keep, n_discard=n_discard)
        if 200 - n_keep - n_discard < bench.backend.n_window:
            assert refuse(other, Verb.SHIFT, n_keep=n_keep, n_discard=n_discard).status == 501
        else:
            act(other, Verb.SHIFT, n_keep=n_keep, n_discard=n_discard)
            assert chosen(go_on(other, 0)[1]) == chosen(go_on(bench, 0)[1])


# One buffer for all


@on("gemma-swa")
def test_with_a_window_in_one_buffer_cached_equals_uncached(model):
    with LlamaHarness(model, n_parallel=2, n_ctx=512, kv_unified=True) as bench:
        one, other = bench.prompt(160), bench.prompt(160, seed=1)
        bench.run(task(0, [*one[:60], *bench.prompt(10, seed=2)], id_slot=1, n_predict=1))
        bench.run(task(1, [*other, *bench.prompt(10, seed=3)], id_slot=0, n_predict=1))
        bench.run(task(2, [*one, *bench.prompt(10, seed=2)], id_slot=1, n_predict=1))
        last = task(3, [*other[:120], *bench.prompt(10, seed=7)], id_slot=0)
        bench.run(last)
        assert bench.n_cached(3) == 0, "libllama has taken cells that are behind the window"
        assert chosen(bench.answer(3)) == chosen(alone(model, task(3, last.prompt)))


@on(*SHIFTABLE)
def test_actions_among_requests_that_take_turns(model):
    with LlamaHarness(model, n_parallel=4, n_ctx=512, kv_unified=True) as bench:
        for i in range(6):
            bench.engine.handle(task(i, bench.prompt(60 + 5 * i, seed=i), n_predict=150))
        bench.step_until(lambda: DecodeStatus.NO_ROOM in bench.statuses)
        saved = file_of(b"")
        bench.engine.handle(SlotAction(id=10, verb=Verb.SAVE, slot=2, fd=os.dup(saved)))
        bench.engine.handle(SlotAction(id=11, verb=Verb.FORK, slot=1, source=2))
        bench.engine.handle(SlotAction(id=12, verb=Verb.SHIFT, slot=2, n_keep=0, n_discard=0))
        bench.engine.handle(SlotAction(id=13, verb=Verb.ERASE, slot=3))
        bench.run()
        assert [len(bench.of(id, SlotReport)) for id in (10, 11, 12, 13)] == [1, 1, 1, 1]
        for i in range(6):
            assert bench.done(i).stop_type is StopType.LIMIT
            assert len(bench.tokens(i)) == 150
        n_saved = bench.of(10, SlotReport)[0].n_tokens
    with LlamaHarness(model) as bench:
        assert restore(bench, read(saved), is_ours=True).n_tokens == n_saved


@on("llama-bpe")
def test_what_waits_to_be_saved_is_not_evicted(model):
    with LlamaHarness(model, n_parallel=4, n_ctx=512, kv_unified=True) as bench:
        for i in range(6):
            bench.engine.handle(task(i, bench.prompt(60 + 5 * i, seed=i), n_predict=150))
        bench.step_until(lambda: DecodeStatus.NO_ROOM in bench.statuses)
        assert bench.slots[0].request.id == 0
        bench.engine.handle(SlotAction(id=9, verb=Verb.SAVE, slot=0, fd=file_of(b"")))
        bench.run()
        assert bench.of(9, SlotReport)[0].n_tokens == 60 + 149


@on("llama-bpe")
def test_an_action_waits_for_a_request_that_is_swapped_out(model):
    with LlamaHarness(model, n_parallel=4, n_ctx=512, kv_unified=True) as bench:
        for i in range(4):
            bench.engine.handle(task(i, bench.prompt(60, seed=i), n_predict=200, id_slot=i))
        bench.step_until(lambda: all(bench.tokens(i) for i in range(4)))
        bench.engine.handle(SlotAction(id=9, verb=Verb.SAVE, slot=3, fd=file_of(b"")))
        bench.run()
        assert DecodeStatus.NO_ROOM in bench.statuses
        assert bench.of(9, SlotReport)[0].n_tokens == 60 + 199


@on("llama-bpe")
def test_a_restore_finds_room_where_sequences_are_only_cached(model):
    with LlamaHarness(model, n_parallel=4, n_ctx=512, kv_unified=True) as bench:
        bench.run(task(9, bench.prompt(100, seed=9), id_slot=0, n_predict=0))
        blob = save(bench, 0)
        for i in range(3):
            bench.run(task(i, bench.prompt(150, seed=i), id_slot=i, n_predict=0))
        assert restore(bench, blob, 3).n_tokens == 100


# Tools


def flip(data, i, bits):
    return data[:i] + bytes([data[i] ^ bits]) + data[i + 1 :]


def fill_disk(model, directory, n):
    with LlamaHarness(model, cache_disk=str(directory)) as bench:
        bench.run(task(0, bench.prompt(n), n_predict=0))
        bench.engine.handle(Stop())
    return list(directory.iterdir())


def raw_moved(model, tokens, moves, n_left, rest, n_predict):
    """Greedy text with libllama alone, after runs (start, to, n) of `tokens` have moved to the front."""
    with raw._open(model, 512) as (context, n_vocab):
        memory = lib.llama_get_memory(context)
        raw_decode(context, tokens)
        for start, to, n in moves:
            lib.llama_memory_seq_rm(memory, 0, to, start)
            lib.llama_memory_seq_add(memory, 0, start, start + n, to - start)
        lib.llama_memory_seq_rm(memory, 0, n_left, -1)
        generated, pending = [], rest
        while len(generated) < n_predict:
            raw_decode(context, pending)
            logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(n_vocab,))
            pending = [int(logits.argmax())]
            generated += pending
    return generated


def raw_saved(model, tokens):
    """SES1 as seed 001 draws it, by libllama alone."""
    with raw._open(model, 512) as (context, _):
        raw_decode(context, tokens)
        size = lib.llama_state_seq_get_size(context, 0)
        state = (ctypes.c_uint8 * size)()
        assert lib.llama_state_seq_get_data(context, state, size, 0) == size
    return b"SES1" + struct.pack(f"<I{len(tokens)}i", len(tokens), *tokens) + bytes(state)


def raw_decode(context, tokens):
    array = (ctypes.c_int32 * len(tokens))(*tokens)
    assert lib.llama_decode(context, lib.llama_batch_get_one(array, len(tokens))) == 0
