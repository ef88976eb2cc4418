"""Prompts with pictures and sounds give the same answer, to the bit, wherever their beginning comes from."""

from __future__ import annotations

import pytest

from corral.core.result import Admitted
from corral.core.task import Stop
from tests.model.bench import task
from tests.model.test_conversation import held, restore, save
from tests.model.vision import (
    AFTER,
    BEFORE,
    MARK,
    PAIRS,
    TEXT,
    chosen,
    cold,
    encoded_chunks,
    media_for,
    open_pair,
    pictured,
    runs_of,
)
from tests.tools.pictures import noise

BOTH = TEXT + MARK + AFTER
OTHER = "be with them " + TEXT
CUTTABLE = [pair for pair in PAIRS if pair != "gemma3"]  # a part of a saved state is of use
SHAPES = {
    "one slot": {},
    "three slots": {"n_parallel": 3},
    "unified": {"n_parallel": 2, "kv_unified": True},
    "small batches": {"n_batch": 16, "n_ubatch": 16},
    "smaller batches": {"n_batch": 24, "n_ubatch": 20},
}

on_all = pytest.mark.parametrize("pair", PAIRS)
on_pictures = pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair != "ultravox"])
in_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


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


@on_all
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


@on_all
@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
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


@on_all
@pytest.mark.parametrize(
    "shape", [{}, {"n_parallel": 2}, {"kv_unified": True}], ids=["one", "two", "unified"]
)
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
    text, media, options = 8 * "not that one " + TEXT, media_for(pair)[:1], {"cache_disk": str(tmp_path)}
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


@on_all
@pytest.mark.parametrize("place", [in_its_slot, beside_it, in_memory])
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
    picture, options = noise(1, 96, 96), {"cache_disk": str(tmp_path)}
    for id, n_most in enumerate((0, 12)):
        with open_pair(vision, "qwen2vl", image_max_tokens=n_most, **options) as bench:
            one = pictured(bench, id, TEXT, [picture])
            bench.run(one)
            assert bench.n_cached(id) <= runs_of(one)[0].start
            bench.engine.handle(Stop())


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
