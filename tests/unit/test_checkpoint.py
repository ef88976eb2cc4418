"""Where checkpoints are taken and kept, and what the engine makes of them on a fake backend."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import ALIGNMENT, MIN_CHUNK
from corral.core.errors import InvalidRequest
from corral.core.result import Admitted, Tier
from corral.engine.checkpoint import Checkpoint, CheckpointRule, add_checkpoint, latest
from corral.engine.prefix import MIN_REUSE
from corral.engine.saved import SavedState
from corral.engine.ses1_table import Row, pack_table, parse_table
from tests.unit.engine_harness import EngineHarness, alone, task
from tests.unit.fake import EOG, FakeBackend
from tests.unit.ses1_files import Port, either, read, refuses, sealed_again, write

RULE = CheckpointRule(n_max=32, min_step=64, n_ubatch=32, message_ends=(EOG,))


def conversation(*sizes: int) -> list[int]:
    """Messages with these numbers of tokens, each with its end."""
    return [t for i, n in enumerate(sizes) for t in [*[i + 1] * (n - 1), EOG]]


prompts = st.lists(st.integers(0, 9), min_size=1, max_size=600)


@given(prompts, st.integers(0, 600), st.integers(0, 100), st.integers(0, 200), st.integers(0, 40))
def test_a_prompt_is_cut_only_where_chunks_may_end(prompt, n_cached, n_system, min_step, n_max):
    n_cached = min(n_cached, len(prompt) - 1)
    rule = CheckpointRule(n_max, min_step, 32, (EOG,))
    places = rule.plan(np.array(prompt, np.int32), n_cached, n_system)
    assert len(places) <= n_max
    ends = [n_cached, *places, len(prompt)] if places else []
    assert all(b - a >= MIN_CHUNK for a, b in itertools.pairwise(ends))
    assert all((place - n_cached) % ALIGNMENT == 0 for place in places)


@given(prompts)
def test_the_end_of_a_prompt_has_a_checkpoint_nearby(prompt):
    places = RULE.plan(np.array(prompt, np.int32), 0)
    if len(prompt) >= 2 * MIN_CHUNK + ALIGNMENT:
        assert len(prompt) - places[-1] < MIN_CHUNK + ALIGNMENT


@pytest.mark.parametrize("min_step", [0, 64])
def test_the_second_and_the_last_two_messages_begin_with_one(min_step):
    rule = CheckpointRule(32, min_step, 32, (EOG,))
    places = rule.plan(np.array([*conversation(20, 20, 40, 40), 7, 7, 7], np.int32), 0)
    assert {20, 80, 112} <= set(places)
    assert (40 in places) == (min_step == 0)


def test_the_system_prompt_ends_with_one():
    assert 20 in RULE.plan(np.full(100, 3, np.int32), 0, n_system=22)


def test_a_long_message_has_one_at_every_step():
    places = RULE.plan(np.full(1000, 3, np.int32), 0)
    assert all(b - a <= 2 * RULE.min_step for a, b in zip([0, *places], places, strict=False))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 8))
def test_no_more_are_kept_than_allowed_and_the_newest_is_among_them(places, n_max):
    kept: list[Checkpoint] = []
    for n in places:
        kept = add_checkpoint(kept, Checkpoint(n, b""), n_max)
        assert len(kept) <= n_max
        assert n in [checkpoint.n for checkpoint in kept]
        assert [c.n for c in kept] == sorted({c.n for c in kept})


@given(st.lists(st.integers(1, 50)), st.integers(0, 50))
def test_the_latest_is_the_nearest_that_is_not_after(places, n):
    assert latest(places, n) == max([0, *(place for place in places if place <= n)])


# --- the engine


def cannot_cut(n_seq: int = 1, **options) -> EngineHarness:
    return EngineHarness(FakeBackend(n_seq=n_seq, n_ctx=1024, can_cut=False), **options)


def expect_alone(bench: EngineHarness, one) -> None:
    assert bench.tokens(one.id) == alone(msgspec.structs.replace(one, id=0), n_ctx=1024)


WHOLE = conversation(100, 100, 100)


def test_an_edit_goes_back_to_the_start_of_the_message():
    bench = cannot_cut()
    bench.run(task(0, WHOLE))
    edited = task(1, [*WHOLE[:260], *[9] * 30])
    bench.run(edited)
    assert bench.of(1, Admitted)[0].n_cached == 200
    expect_alone(bench, edited)


def test_a_regenerated_answer_evaluates_only_the_end_of_the_prompt():
    bench = cannot_cut()
    bench.run(task(0, WHOLE))
    bench.run(again := task(1, WHOLE, seed=2))
    assert bench.of(1, Admitted)[0].n_cached == 292
    expect_alone(bench, again)


def test_the_end_of_an_answer_is_a_checkpoint_of_the_next_turn():
    bench = cannot_cut()
    bench.run(task(0, WHOLE))
    history = bench.slots[0].tokens.view.tolist()
    bench.run(task(1, [*history, *[5] * 40]))
    other = task(2, [*history, *[6] * 40])
    bench.run(other)
    assert bench.of(2, Admitted)[0].n_cached == len(history)
    expect_alone(bench, other)


def test_an_abort_goes_back_to_a_checkpoint():
    bench = cannot_cut(checkpoint_min_step=64)
    bench.engine.handle(one := task(0, WHOLE))
    while len(bench.slots[0].tokens) < 200:
        bench.engine.step()
    n_before = bench.backend.n_prompt_tokens_evaluated
    bench.backend.leaves_debris = True
    bench.run()
    assert bench.backend.n_prompt_tokens_evaluated - n_before < 200
    expect_alone(bench, one)


def test_a_tenant_gets_only_the_system_prompt_of_another():
    bench = cannot_cut(n_seq=2)
    bench.run(msgspec.structs.replace(task(0, WHOLE, n_system=100), tenant=b"a" * 16))
    other = msgspec.structs.replace(task(1, [*WHOLE[:280], *[9] * 30], n_system=100), tenant=b"b" * 16)
    bench.run(other)
    assert bench.of(1, Admitted)[0].n_cached == 100
    expect_alone(bench, other)


def test_checkpoints_keep_within_the_budget_and_saved_states_make_room():
    bench = cannot_cut(n_seq=2, cache_ram_mib=1)
    bench.backend.save_partial = lambda seq: bytes(300 << 10)
    bench.run(task(0, WHOLE, id_slot=0))
    assert sum(c.n_bytes for slot in bench.slots for c in slot.checkpoints) <= 1 << 20
    bench.run(task(1, conversation(90, 90, 80), id_slot=1))
    kept = [[c.n for c in slot.checkpoints] for slot in bench.slots]
    assert sum(map(len, kept)) == 3
    assert kept[1], "the least recently used slot loses its own first"


def test_checkpoints_come_back_with_the_state_of_a_slot_that_yielded():
    bench = cannot_cut()
    bench.run(task(0, WHOLE))
    bench.run(task(1, [8] * 150))
    edited = task(2, [*WHOLE[:260], *[9] * 30])
    bench.run(edited)
    (admitted,) = bench.of(2, Admitted)
    assert (admitted.tier, admitted.n_cached) == (Tier.RAM, 200)
    expect_alone(bench, edited)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(0, 60)), max_size=8))
def test_whatever_is_cached_answers_are_the_same(turns):
    bench = cannot_cut(n_seq=2, checkpoint_min_step=32)
    for id, (kind, n_kept, n_new) in enumerate(turns):
        one = task(id, [*conversation(*[90] * (kind + 1))[:n_kept], *[7 + kind] * (n_new + 1)], n_predict=3)
        bench.run(one)
        expect_alone(bench, one)


def test_prompts_that_arrive_together_evaluate_their_common_beginning_once():
    bench = cannot_cut(n_seq=3)
    tasks = [task(id, [*WHOLE[:100], *[20 + id] * 60]) for id in range(3)]
    bench.run(*tasks)
    assert bench.backend.n_prompt_tokens_evaluated <= 100 + 3 * 60 + 2 * MIN_REUSE
    for one in tasks:
        expect_alone(bench, one)


def test_a_report_says_that_a_prefix_ends_at_a_checkpoint():
    bench = cannot_cut()
    bench.run(task(0, WHOLE))
    history = bench.slots[0].tokens.view.tolist()
    bench.run(task(1, [*WHOLE[:260], *[9] * 30], cache_report=True))
    bench.run(task(2, [*history, *[9] * 30], cache_report=True))
    reports = [bench.of(id, Admitted)[0].report for id in (1, 2)]
    assert [(r.n_cached, r.n_common, r.is_checkpoint, r.tier) for r in reports] == [
        (200, 260, True, Tier.LIVE),
        (200, 260, True, Tier.LIVE),
    ]


# --- files


def checkpointed(**fields) -> SavedState:
    port, tokens = Port(), [5, 0, 63, 7, 7]
    checkpoints = tuple(Checkpoint(n, port.state(tokens[:n])) for n in (2, 4))
    return SavedState(np.array(tokens, np.int32), port.state(tokens), checkpoints=checkpoints, **fields)


@either
@pytest.mark.parametrize("fields", [{}, {"lora_key": b"l" * 16}, {"tenant": b"t" * 16}])
def test_a_file_has_its_checkpoints(is_ours, fields):
    again = read(write(checkpointed(**fields)), is_ours, Port(growth=3))
    assert [(c.n, c.state[8:]) for c in again.checkpoints] == [
        (n, Port(growth=3).state([5, 0, 63, 7][:n])[8:]) for n in (2, 4)
    ]
    assert (again.tokens.tolist(), again.lora_key, again.tenant) == (
        [5, 0, 63, 7, 7],
        fields.get("lora_key", b""),
        fields.get("tenant", b""),
    )


@either
@given(st.data())
def test_a_file_with_another_byte_anywhere_is_refused(is_ours, data):
    """Sealed again, it has other tokens or values, but never a state that does not fit them."""
    whole = bytearray(write(checkpointed()))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    if is_ours or whole[28:36] == b"KVKVCRL1":
        refuses(bytes(whole), is_ours)
    try:
        again = read(sealed_again(bytes(whole)), is_ours)
    except InvalidRequest:
        return
    assert all(len(c.state) == len(Port().state([0] * c.n)) for c in again.checkpoints)


@given(st.lists(st.integers(1, 100), unique=True), st.integers(0, 100))
def test_a_table_is_read_as_it_was_written(places, more):
    rows = tuple(Row(n, n * more) for n in sorted(places))
    assert parse_table(bytes(7) + pack_table(rows), 100) == rows


@pytest.mark.parametrize("rows", [[Row(0, 1)], [Row(3, 1), Row(3, 1)], [Row(6, 1)]])
def test_a_table_of_impossible_places_is_refused(rows):
    with pytest.raises(InvalidRequest):
        parse_table(pack_table(rows), 5)
    with pytest.raises(InvalidRequest):
        parse_table(b"\xff\xff\xff\xff", 5)
