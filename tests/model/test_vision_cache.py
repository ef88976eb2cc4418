"""Pictures and sounds in the context: the same answer, to the bit, wherever the beginning of a prompt comes
from, and what becomes of them when the context runs full."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from corral.core.chunk import DecodeStatus
from corral.core.media import runs_in
from corral.core.result import Admitted, StopType
from corral.core.task import Cancel, Stop, Verb
from tests.model.llama_harness import task
from tests.model.slot_actions import act, held, refuse, restore, save
from tests.model.vision import (
    AFTER,
    BEFORE,
    MARK,
    PAIRS,
    TEXT,
    arranged,
    chosen,
    cold,
    encoded_chunks,
    media_for,
    native,
    on_all_with,
    open_pair,
    pictured,
    probabilities,
    runs_of,
)
from tests.tools.pictures import RED, noise

BOTH = TEXT + MARK + AFTER
N_CTX = 256
NEAR = 1e-2
OTHER = "be with them " + TEXT
CUTTABLE = [pair for pair in PAIRS if pair != "gemma3"]  # a part of a saved state is of use
SHAPES: dict[str, Any] = {
    "one slot": {},
    "three slots": {"n_parallel": 3},
    "unified": {"n_parallel": 2, "kv_unified": True},
    "small batches": {"n_batch": 16, "n_ubatch": 16},
    "smaller batches": {"n_batch": 24, "n_ubatch": 20},
}

on_all = pytest.mark.parametrize("pair", PAIRS)
on_pictures = pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair != "ultravox"])
in_shapes = on_all_with("shape", SHAPES)


@pytest.fixture
def answer(vision, pair):
    """What a pair says to two media without a cache."""
    return cold(vision, pair, BOTH, media_for(pair)[:2])


@pytest.fixture(scope="module")
def turns(vision):
    """What every pair says to more text behind its first answer, which is still where it was."""
    found = {}
    for pair in PAIRS:
        with open_pair(vision, pair) as bench:
            first = both(bench, 1, pair)
            bench.run(first)
            bench.run(second_turn(bench, 2, pair, bench.tokens(1)))
            assert bench.n_cached(2) >= len(first.prompt)
            found[pair] = bench.tokens(1), bench.answer(2)
    return found


def both(bench, id, pair, **params):
    return pictured(bench, id, BOTH, media_for(pair)[:2], **params)


def second_turn(bench, id, pair, said, **params):
    return both(bench, id, pair, tail=[*said, *bench.prompt(20, seed=5)], **params)


def assert_same(pair, answer, expected):
    """To the bit, unless the window of a saved state had to be used as it was."""
    assert chosen(answer) == chosen(expected)
    assert answer == expected or pair not in CUTTABLE


def count_encoded(bench):
    """The digests of media that the projector works on from now on."""
    seen, encode = [], bench.projector.encode

    def record(media, go_on):
        seen.extend(medium.digest for medium, _ in media)
        return encode(media, go_on)

    bench.projector.encode = record
    return seen


# --- the same answer


@in_shapes
def test_an_answer_is_the_same_in_any_shape_and_from_its_slot(vision, answer, pair, shape):
    with open_pair(vision, pair, **shape) as bench:
        bench.run(both(bench, 1, pair, cache_prompt=False))
        bench.run(both(bench, 2, pair, cache_prompt=False))
        again = both(bench, 3, pair)
        bench.run(again)
        assert bench.n_cached(2) == 0
        assert bench.n_cached(3) >= runs_of(again)[-1].end
        assert bench.answer(1) == bench.answer(2) == bench.answer(3) == answer


@on_pictures
@pytest.mark.parametrize(
    "text", [TEXT, TEXT + " and one more of that", TEXT + MARK], ids=["1", "1 more", "2"]
)
def test_a_prompt_goes_on_from_the_beginning_of_another(vision, answer, pair, text):
    with open_pair(vision, pair) as bench:
        media = media_for(pair)[:2]
        bench.run(pictured(bench, 1, text, media[: text.count(MARK)], n_predict=0))
        two = both(bench, 2, pair)
        bench.run(two)
        assert bench.n_cached(2) >= runs_of(two)[0].end
        assert bench.answer(2) == answer


@on_all_with("unified", {"split": False, "unified": True})
def test_a_prompt_is_copied_from_another_slot(vision, answer, pair, unified):
    with open_pair(vision, pair, 2, kv_unified=unified) as bench:
        bench.run(both(bench, 1, pair, id_slot=0))
        two = both(bench, 2, pair, id_slot=1)
        bench.run(two)
        assert bench.n_cached(2) >= runs_of(two)[-1].end
        assert chosen(bench.answer(2)) == chosen(answer)
        assert unified or bench.answer(2) == answer
        bench.run(both(bench, 3, pair, id_slot=0), both(bench, 4, pair, id_slot=1))
        assert chosen(bench.answer(3)) == chosen(bench.answer(4)) == chosen(answer)
        assert unified or bench.answer(3) == bench.answer(4) == answer


@on_all
def test_a_prompt_comes_back_from_memory(vision, answer, turns, pair):
    with open_pair(vision, pair) as bench:
        bench.run(both(bench, 1, pair))
        bench.run(task(2, bench.prompt(100, seed=3)))
        two = both(bench, 3, pair)
        bench.run(two)
        assert bench.n_cached(3) >= (runs_of(two)[-1].end if pair in CUTTABLE else 0)
        assert bench.answer(3) == answer
        bench.run(task(4, bench.prompt(100, seed=4)))
        said, further = turns[pair]
        bench.run(second_turn(bench, 5, pair, said))
        assert bench.n_cached(5) >= len(two.prompt)
        assert_same(pair, bench.answer(5), further)


@on_all_with("shape", {"one": {}, "two": {"n_parallel": 2}, "unified": {"kv_unified": True}})
def test_a_restored_slot_goes_on(vision, turns, pair, shape):
    said, further = turns[pair]
    with open_pair(vision, pair, **shape) as bench:
        bench.run(both(bench, 1, pair))
        assert bench.tokens(1) == said
        tokens, blob = held(bench, 0), save(bench, 0)
    with open_pair(vision, pair) as bench:
        restore(bench, blob)
        assert held(bench, 0) == tokens
        bench.run(second_turn(bench, 2, pair, said))
        assert bench.n_cached(2) > len(tokens) - 4
        assert_same(pair, bench.answer(2), further)
        assert not encoded_chunks(bench)


@on_all
def test_a_slot_that_ends_with_a_picture_is_restored(vision, pair):
    media, more = media_for(pair)[:1], " that is not one of them"
    with open_pair(vision, pair) as bench:
        bench.run(pictured(bench, 1, BEFORE + MARK, media, n_predict=0))
        blob = save(bench, 0)
        bench.run(pictured(bench, 2, BEFORE + MARK + more, media))
    with open_pair(vision, pair, 2) as other:
        restore(other, blob, 1)
        other.run(pictured(other, 3, BEFORE + MARK + more, media))
        assert other.of(3, Admitted)[0].id_slot == 1
        assert other.answer(3) == bench.answer(2)
        assert not encoded_chunks(other)


@on_all
def test_a_prompt_comes_back_from_disk(vision, pair, tmp_path):
    text, media = 8 * "not that one " + TEXT, media_for(pair)[:1]
    options: dict[str, Any] = {"cache_disk": str(tmp_path)}
    with open_pair(vision, pair, **options) as bench:
        first = pictured(bench, 1, text, media)
        bench.run(first)
        bench.engine.handle(Stop())
        tail = [*bench.tokens(1), *bench.prompt(20)]
        bench.run(pictured(bench, 2, text, media, tail=tail))
    with open_pair(vision, pair, **options) as other:
        other.run(pictured(other, 3, text, media, tail=tail))
        assert other.n_cached(3) >= len(first.prompt)
        assert_same(pair, other.answer(3), bench.answer(2))
        assert not encoded_chunks(other)
    with open_pair(vision, pair, **options) as other:
        other.run(pictured(other, 4, text, media))
        assert other.n_cached(4) >= (runs_of(first)[-1].end if pair in CUTTABLE else 0)
        assert other.answer(4) == bench.answer(1)


@on_all
def test_streams_do_not_change_each_other(vision, answer, pair):
    with open_pair(vision, pair, 3) as bench:
        media = media_for(pair)
        text = task(1, bench.prompt(60), n_predict=60)
        bench.engine.handle(text)
        bench.step_until(lambda: len(bench.tokens(1)) > 3)
        bench.run(both(bench, 2, pair), pictured(bench, 3, OTHER, media[2:]))
        assert bench.answer(2) == answer
        assert bench.answer(3) == cold(vision, pair, OTHER, media[2:])
        bench.run(task(4, text.prompt, n_predict=60, cache_prompt=False))
        assert bench.answer(4) == bench.answer(1)


@on_pictures
def test_streams_in_one_buffer_say_the_same(vision, answer, pair):
    with open_pair(vision, pair, 3, kv_unified=True) as bench:
        bench.engine.handle(task(1, bench.prompt(60), n_predict=60))
        bench.step_until(lambda: len(bench.tokens(1)) > 3)
        bench.run(both(bench, 2, pair), pictured(bench, 3, OTHER, media_for(pair)[2:]))
        assert bench.tokens(2) == chosen(answer)
        assert bench.done(3)


@on_all
def test_equal_prompts_that_arrive_together_are_evaluated_once(vision, answer, pair):
    with open_pair(vision, pair, 3) as bench:
        seen = count_encoded(bench)
        tasks = [both(bench, id, pair) for id in (1, 2, 3)]
        bench.run(*tasks)
        assert bench.answer(1) == bench.answer(2) == bench.answer(3) == answer
        n_encoded = sum(len(chunk.tokens) for chunk in encoded_chunks(bench))
        assert n_encoded == sum(run.end - run.start for run in runs_of(tasks[0]))
        assert len(seen) == len(set(seen)) == 2


@pytest.mark.parametrize("pair", ["llava", "qwen2vl", "sliced"])
def test_a_full_buffer_swaps_pictured_prompts_out_and_in(vision, answer, pair):
    with open_pair(vision, pair, 3, kv_unified=True, n_ctx=256, cache_ram_mib=0) as bench:
        bench.run(*(both(bench, id, pair, n_predict=24, cache_prompt=False) for id in range(6)))
        for id in range(6):
            assert bench.tokens(id) == chosen(answer)
        assert DecodeStatus.NO_ROOM in bench.statuses


# --- what is reused


@on_all
def test_a_second_turn_evaluates_no_picture_again(vision, pair):
    with open_pair(vision, pair) as bench:
        seen = count_encoded(bench)
        first = both(bench, 1, pair)
        bench.run(first)
        n_before, n_encoded = len(seen), len(encoded_chunks(bench))
        bench.run(second_turn(bench, 2, pair, bench.tokens(1)))
        assert bench.n_cached(2) >= len(first.prompt)
        assert len(encoded_chunks(bench)) == n_encoded
        assert len(seen) == n_before == 2


def in_its_slot(bench, make):
    bench.run(make(id_slot=0))
    return 0


def beside_it(bench, make):
    bench.run(make(id_slot=0))
    return 1


def in_memory(bench, make):
    bench.run(make(id_slot=0))
    bench.run(*(task(50 + slot, bench.prompt(150, seed=slot), id_slot=slot) for slot in range(2)))
    return 0


@on_all_with("place", {"in its slot": in_its_slot, "beside it": beside_it, "in memory": in_memory})
def test_prompts_that_differ_in_a_picture_do_not_share_it(vision, pair, place):
    one, two, three = media_for(pair)
    with open_pair(vision, pair, 2) as bench:
        slot = place(bench, lambda **where: pictured(bench, 1, BOTH, [one, two], **where))
        second = pictured(bench, 2, BOTH, [one, three], id_slot=slot)
        n_first = second.media[0].n_runs
        bench.run(second)
        assert bench.n_cached(2) <= runs_of(second)[n_first].start
        assert bench.answer(2) == cold(vision, pair, BOTH, [one, three])
        third = pictured(bench, 3, TEXT, [two], id_slot=slot)
        bench.run(third)
        assert bench.n_cached(3) <= runs_of(third)[0].start
        assert bench.answer(3) == cold(vision, pair, TEXT, [two])


@on_pictures
def test_a_picture_behind_another_text_is_evaluated_again(vision, pair):
    media = media_for(pair)[:1]
    with open_pair(vision, pair, 2) as bench:
        bench.run(pictured(bench, 1, TEXT, media))
        other = pictured(bench, 2, OTHER, media)
        bench.run(other)
        assert bench.n_cached(2) <= runs_of(other)[0].start
        n_evaluated = sum(len(chunk.tokens) for chunk in encoded_chunks(bench))
        assert n_evaluated == 2 * sum(run.end - run.start for run in runs_of(other))
        assert bench.answer(2) == cold(vision, pair, OTHER, media)


@pytest.mark.parametrize("pair", ["llava", "sliced", "qwen2vl"])
def test_a_picture_of_another_shape_with_the_same_bytes_is_another(vision, pair):
    tall = noise(4, 32, 64)
    wide = tall.reshape(32, 64, 3)
    with open_pair(vision, pair) as bench:
        bench.run(pictured(bench, 1, TEXT, [tall]))
        two = pictured(bench, 2, TEXT, [wide])
        bench.run(two)
        assert bench.n_cached(2) <= runs_of(two)[0].start
        assert bench.answer(2) == cold(vision, pair, TEXT, [wide])


def test_pictures_with_other_limits_of_tokens_are_others(vision, tmp_path):
    picture = noise(1, 96, 96)
    options: dict[str, Any] = {"cache_disk": str(tmp_path)}
    for id, n_most in enumerate((0, 12)):
        with open_pair(vision, "qwen2vl", image_max_tokens=n_most, **options) as bench:
            one = pictured(bench, id, TEXT, [picture])
            bench.run(one)
            assert bench.n_cached(id) <= runs_of(one)[0].start
            bench.engine.handle(Stop())


def test_pictures_of_another_projector_are_others(vision, tmp_path):
    text = 8 * "not that one " + TEXT + 3 * AFTER
    for pair in ("llava", "sliced"):
        with open_pair(vision, pair, cache_disk=str(tmp_path)) as bench:
            one = pictured(bench, 1, text, [RED])
            bench.run(one)
            assert bench.n_cached(1) <= runs_of(one)[0].start
            assert bench.answer(1) == cold(vision, pair, text, [RED])
            bench.engine.handle(Stop())


@pytest.mark.parametrize("pair", ["llava", "qwen2vl"])
def test_a_cancelled_prompt_leaves_no_half_of_a_picture(vision, pair):
    picture = noise(7, 160, 112)
    with open_pair(vision, pair, n_ubatch=8) as bench:
        one = pictured(bench, 1, TEXT, [picture])
        bench.engine.handle(one)
        bench.step_until(lambda: encoded_chunks(bench))
        assert len(encoded_chunks(bench)[0].tokens) < runs_of(one)[0].end - runs_of(one)[0].start
        bench.engine.handle(Cancel(1))
        assert held(bench, 0) == one.prompt[: runs_of(one)[0].start]
        blob = save(bench, 0)
        bench.run(pictured(bench, 2, TEXT, [picture]))
        bench.run(pictured(bench, 3, TEXT, [picture], cache_prompt=False))
        assert bench.answer(2) == bench.answer(3)
    with open_pair(vision, pair) as bench:
        restore(bench, blob)
        bench.run(pictured(bench, 3, TEXT, [picture]))
        assert bench.answer(3) == cold(vision, pair, TEXT, [picture])


@pytest.mark.parametrize("pair", ["llava", "qwen2vl", "sliced"])
@pytest.mark.parametrize("status", [DecodeStatus.ABORTED, DecodeStatus.NO_ROOM])
def test_a_picture_is_evaluated_again_after_a_decode_that_came_to_nothing(vision, pair, status):
    picture, n_before = noise(7, 160, 112), 1 if pair == "llava" else 2
    with open_pair(vision, pair, 2, n_ubatch=16) as bench:
        decode, seen = bench._decode, []

        def fail(chunks):
            found = decode(chunks)
            seen.append(chunks[0].encoded is not None)
            return status if seen[-1] and sum(seen) == n_before else found

        bench.run(task(1, bench.prompt(30)))
        bench._decode = fail
        bench.run(pictured(bench, 2, TEXT, [picture]))
        assert status in bench.statuses
        assert bench.answer(2) == cold(vision, pair, TEXT, [picture])


# --- what the projector has made


@on_all
def test_a_picture_is_encoded_once(vision, pair):
    one, two, _ = media_for(pair)
    with open_pair(vision, pair) as bench:
        seen = count_encoded(bench)
        bench.run(pictured(bench, 1, TEXT, [one]))
        bench.run(pictured(bench, 2, OTHER, [one]))
        bench.run(pictured(bench, 3, BOTH, [two, one], cache_prompt=False))
        assert len(seen) == len(set(seen)) == 2
        assert bench.answer(2) == cold(vision, pair, OTHER, [one])
        assert bench.answer(3) == cold(vision, pair, BOTH, [two, one])


@on_all
def test_without_a_cache_it_is_encoded_every_time(vision, pair):
    one = media_for(pair)[0]
    with open_pair(vision, pair, cache_media_mib=0) as bench:
        seen = count_encoded(bench)
        bench.run(pictured(bench, 1, TEXT, [one]))
        bench.run(pictured(bench, 2, OTHER, [one]))
        assert len(seen) == 2
        assert len(set(seen)) == 1
        assert bench.answer(2) == cold(vision, pair, OTHER, [one])


@on_pictures
def test_a_picture_that_comes_twice_in_a_prompt_is_encoded_once(vision, pair):
    one = media_for(pair)[0]
    with open_pair(vision, pair, cache_media_mib=0) as bench:
        seen = count_encoded(bench)
        twice = pictured(bench, 1, BOTH, [one, one])
        bench.run(twice)
        assert len(seen) == 1
        runs = runs_of(twice)
        n_evaluated = sum(len(chunk.tokens) for chunk in encoded_chunks(bench))
        assert n_evaluated == sum(run.end - run.start for run in runs)


# --- the context runs full


def shifting(vision, pair):
    return open_pair(vision, pair, n_ctx_slot=N_CTX, context_shift=True)


def shifts_of(bench):
    """What is kept and what is discarded from now on."""
    seen, shift = [], bench.kv.shift

    def record(slot, n_keep, n_discard):
        seen.append((n_keep, n_discard))
        shift(slot, n_keep, n_discard)

    bench.kv.shift = record
    return seen


@pytest.mark.one_in(3)
@pytest.mark.parametrize("n_keep", [0, 16, 20, 32, 40, -1])
@pytest.mark.parametrize("n_discard", [0, 1, 16, 30])
def test_a_shift_keeps_or_drops_a_picture_as_a_whole(vision, n_keep, n_discard):
    with shifting(vision, "llava") as bench:
        one = pictured(bench, 1, TEXT, [noise(1)], n_keep=n_keep, n_discard=n_discard, n_predict=260)
        (run,) = runs_of(one)
        bench.run(one)
        tokens = bench.slots[0].tokens.view
        media = tokens[tokens < 0].tolist()
        assert media in ([], one.prompt[run.start : run.end])
        assert media or 0 <= n_keep < run.end
        assert len(bench.tokens(1)) == 260
        assert bench.done(1).truncated


# The first shift, behind 16 tokens of text and before 13 of them there is the picture.
SHIFTS: dict[Any, Any] = {
    (0, 10): (0, 10),
    (0, 16): (0, 16),
    (0, 20): (0, 32),
    (10, 6): (10, 6),
    (10, 7): (10, 22),
    (16, 1): (16, 16),
    (20, 5): (16, 16),
    (20, 12): (16, 16),
    (20, 13): (32, 1),
    (32, 10): (32, 10),
    (40, 50): (40, 50),
    (-1, 100): (45, 100),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("asked", SHIFTS)
def test_a_shift_is_what_libllama_does(vision, asked):
    with shifting(vision, "llava") as bench:
        shifts = shifts_of(bench)
        params = {"n_keep": asked[0], "n_discard": asked[1], "n_predict": 260}
        one = pictured(bench, 1, TEXT, [noise(1)], **params)
        bench.run(one)
        answer = bench.answer(1)
    assert shifts[0] == SHIFTS[asked]
    with native(vision, "llava") as alone:
        alone.evaluate(TEXT, [noise(1)])
        n_held = len(one.prompt)
        for probs in answer[:-1]:
            assert_near(probs, alone.row())
            if n_held == N_CTX - 1:
                keep, discard = shifts.pop(0)
                alone.shift(keep, discard)
                n_held -= discard
            alone.go_on(probs.chosen.id)
            n_held += 1
    assert not shifts


def assert_near(probs, row):
    """Sums in another order make some difference in half precision."""
    expected = probabilities(row)
    assert all(abs(expected[top.id] - top.prob) < NEAR for top in probs.top)


@pytest.mark.parametrize("pair", ["sliced", "gemma3"])
@pytest.mark.parametrize("n_keep", [0, 20, 40])
def test_a_shift_leaves_nothing_but_whole_runs(vision, pair, n_keep):
    with shifting(vision, pair) as bench:
        one = pictured(bench, 1, BOTH, media_for(pair)[:2], n_keep=n_keep, n_discard=9, n_predict=0)
        prompt = np.array(one.prompt, np.int32)
        whole = {tuple(prompt[run.start : run.end]) for run in runs_of(one)}
        bench.run(msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, n_predict=250)))
        left = bench.slots[0].tokens.view
        assert {tuple(left[run.start : run.end]) for run in runs_in(left)} <= whole
        assert len(bench.tokens(1)) == 250
        assert bench.done(1).truncated


def test_a_shift_keeps_or_drops_all_slices_of_a_picture(vision):
    with shifting(vision, "sliced") as bench:
        one = pictured(bench, 1, TEXT, [noise(1, 64, 48)], n_keep=20, n_discard=20, n_predict=250)
        n_all = sum(run.end - run.start for run in runs_of(one))
        bench.run(one)
        assert np.count_nonzero(bench.slots[0].tokens.view < 0) in (0, n_all)


def test_positions_in_a_plane_do_not_shift(vision):
    with shifting(vision, "qwen2vl") as bench:
        bench.run(pictured(bench, 1, TEXT, [noise(1)], n_predict=400))
        done = bench.done(1)
        assert (done.stop_type, done.truncated) == (StopType.LIMIT, True)
        assert done.n_past < N_CTX
        assert refuse(bench, Verb.SHIFT, n_keep=0, n_discard=4).status == 501


@pytest.mark.parametrize(
    ("n_keep", "n_discard"), [(20, 4), (0, 17), (0, 31), (17, 30), (20, 20), (10, 10), (31, 1)]
)
def test_no_cut_goes_through_a_picture(vision, n_keep, n_discard):
    with open_pair(vision, "llava") as bench:
        bench.run(pictured(bench, 1, TEXT, [noise(1)]))
        before = bench.slots[0].tokens.view.tolist()
        error = refuse(bench, Verb.SHIFT, n_keep=n_keep, n_discard=n_discard)
        assert error.status == 400
        assert "16 to 31" in error.message
        assert bench.slots[0].tokens.view.tolist() == before


@pytest.mark.parametrize(("n_keep", "n_discard"), [(16, 16), (0, 16), (4, 12), (32, 5), (0, 32), (4, 40)])
def test_a_cut_beside_a_picture_is_what_libllama_does(vision, n_keep, n_discard):
    with open_pair(vision, "llava") as bench:
        one = pictured(bench, 1, TEXT, [noise(1)])
        bench.run(one)
        held = bench.slots[0].tokens.view.tolist()
        act(bench, Verb.SHIFT, n_keep=n_keep, n_discard=n_discard)
        left = [*held[:n_keep], *held[n_keep + n_discard :]]
        assert bench.slots[0].tokens.view.tolist() == left
        two = task(2, [*left, *bench.prompt(20)], id_slot=0)
        if min(left) < 0:
            _, media, fd = arranged(bench, MARK, [noise(1)])
            two = msgspec.structs.replace(two, media=media, fd=fd)
        bench.run(two)
        n_cached, answer = bench.n_cached(2), bench.answer(2)
        assert n_cached > len(left) - 4
    with native(vision, "llava") as alone:
        alone.evaluate(TEXT, [noise(1)])
        for token in held[len(one.prompt) :]:
            alone.go_on(token)
        alone.shift(n_keep, n_discard)
        alone.cut(n_cached)
        for token in two.prompt[n_cached:]:
            alone.go_on(token)
        for probs in answer:
            assert_near(probs, alone.row())
            alone.go_on(probs.chosen.id)


# --- a lost engine


@on_all_with("n", {"10": 10, "1": 1, "23": 23})
def test_a_lost_answer_goes_on(vision, pair, n):
    text, media = TEXT + MARK, media_for(pair)[:2]
    answer = cold(vision, pair, text, media)
    with open_pair(vision, pair, batch_exact="on") as bench:
        bench.run(pictured(bench, 1, text, media, resume=chosen(answer)[:n]))
        assert bench.answer(1) == answer[n:]


def test_a_lost_answer_goes_on_after_shifts(vision):
    with shifting(vision, "llava") as bench:
        params: dict[str, Any] = {"n_keep": 20, "n_discard": 9, "n_predict": 300}
        bench.run(pictured(bench, 1, TEXT, [noise(1)], **params))
        answer = bench.answer(1)
    with shifting(vision, "llava") as bench:
        bench.run(pictured(bench, 1, TEXT, [noise(1)], resume=chosen(answer)[:270], **params))
        assert bench.answer(1) == answer[270:]
