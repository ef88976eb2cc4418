"""Media as runs of negative tokens, and the decisions that must not go through the middle of one."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from corral.core.chunk import ALIGNMENT, MIN_CHUNK, common_prefix
from corral.core.errors import InvalidRequest
from corral.core.media import (
    MediaRun,
    MediaSpan,
    cell_positions,
    has_media,
    is_valid_layout,
    key_of,
    n_positions,
    placeholder_tokens,
    runs_in,
    span_around,
    spans_in,
)
from corral.core.media_item import text_tokens
from corral.engine.batch import BatchShape, NextToken, PendingPrompt, PromptPart, align, plan_batches
from corral.engine.context_shift import plan_shift, spare_media
from corral.engine.grouping import Grouping
from corral.engine.prefix import reusable
from corral.engine.reuse import Move, plan_reuse
from corral.engine.saved import NEVER, SavedState
from corral.engine.ses1 import Ses1, read_title
from tests.unit.fake import FakeBackend, FakeVocab
from tests.unit.ses1_files import file_of

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def array(values) -> np.ndarray:
    return np.array(values, np.int32)


@st.composite
def runs(draw, n_most=12, contents=6) -> tuple[list[int], int, bool, bool]:
    """The tokens of a run, how many positions it takes, whether it is flat, or more of a picture."""
    n = draw(st.integers(1, n_most))
    is_flat = draw(st.booleans())
    n_pos = draw(st.integers(1, n)) if is_flat and n > 1 else n
    is_more = draw(st.booleans())
    run = placeholder_tokens(b"%d" % draw(st.integers(0, contents)), n, n_pos, is_flat, is_more)
    return run, n_pos, is_flat, is_more


texts = st.lists(st.integers(0, 5), min_size=1, max_size=20)
mixtures = st.lists(st.one_of(texts, runs()), max_size=8)


def lay_out(parts) -> tuple[list[int], list[MediaRun], list[int], int]:
    """Token by token: the tokens, the runs among them, where each one is, and where the next one goes."""
    tokens, found, positions, pos = [], [], [], 0
    for part in parts:
        if isinstance(part, list):
            for token in part:
                tokens.append(token)
                positions.append(pos)
                pos += 1
            continue
        run, n_pos, is_flat, is_more = part
        found.append(MediaRun(len(tokens), len(tokens) + len(run), n_pos, is_flat, is_more))
        for i, token in enumerate(run):
            tokens.append(token)
            positions.append(pos if is_flat else pos + i)
        pos += n_pos
    return tokens, found, positions, pos


@given(mixtures)
def test_runs_are_found_again_wherever_they_are(parts):
    tokens, expected, _, _ = lay_out(parts)
    assert runs_in(array(tokens)) == expected
    assert is_valid_layout(array(tokens))
    assert has_media(array(tokens)) == bool(expected)


@given(mixtures)
def test_positions_are_those_counted_one_by_one(parts):
    tokens, _, positions, following = lay_out(parts)
    assert cell_positions(array(tokens)).tolist() == positions
    assert n_positions(array(tokens)) == following
    assert cell_positions(array(tokens)).dtype == np.int32


@given(mixtures)
def test_a_picture_has_all_its_runs_and_the_text_between_them(parts):
    tokens, found, _, _ = lay_out(parts)
    firsts = [i for i, run in enumerate(found) if not run.is_more or not i]
    pictures = [found[i:end] for i, end in pairwise([*firsts, len(found)])]
    assert spans_in(array(tokens)) == [MediaSpan(own[0].start, own[-1].end) for own in pictures]


@given(mixtures, st.integers(0, 100))
def test_a_cut_goes_through_a_picture_or_not(parts, n):
    tokens, _, _, _ = lay_out(parts)
    inside = [span for span in spans_in(array(tokens)) if n in range(span.start + 1, span.end)]
    assert span_around(array(tokens), n) == (inside[0] if inside else None)


@given(mixtures)
def test_what_is_left_without_media_is_the_text(parts):
    tokens, _, _, _ = lay_out(parts)
    assert text_tokens(tokens) == [token for part in parts if isinstance(part, list) for token in part]


@given(st.binary(max_size=8), st.integers(1, 40), st.data())
def test_a_run_is_negative_and_always_spelled_alike(content, n, data):
    is_flat = data.draw(st.booleans())
    n_pos = data.draw(st.integers(1, n)) if is_flat and n > 1 else n
    is_more = data.draw(st.booleans())
    run = placeholder_tokens(content, n, n_pos, is_flat, is_more)
    assert len(run) == n
    assert all(INT_MIN <= token < 0 for token in run)
    assert run == placeholder_tokens(content, n, n_pos, is_flat, is_more)
    assert len(key_of(run)) == 4 * n
    assert key_of(run) == key_of(array(run))


def test_runs_that_differ_in_anything_differ_in_tokens():
    kinds = [
        (content, n, n_pos, is_flat, is_more)
        for content in (b"", b"a", b"b", b"aa", b"1 a")
        for n in (1, 2, 3, 16)
        for is_flat in (False, True)
        for n_pos in ((1, n - 1, n) if is_flat and n > 2 else (n,))
        for is_more in (False, True)
    ]
    assert len({key_of(placeholder_tokens(*kind)) for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("n", [2, 16, 300])
def test_runs_of_other_content_or_length_have_nothing_in_common_but_a_chance(n):
    """So that no prompt takes a part of another one's picture from a cache."""
    one = placeholder_tokens(b"one", n, n, False)
    for other in (placeholder_tokens(b"two", n, n, False), placeholder_tokens(b"one", n + 1, n + 1, False)):
        assert common_prefix(array(one), array(other)) == 0


def test_a_flat_run_differs_in_its_first_token_by_its_positions():
    flat = [placeholder_tokens(b"one", 16, n_pos, True) for n_pos in range(1, 17)]
    assert len({run[0] for run in flat}) == 16


def naive_is_spelled(tokens: list[int]) -> bool:
    """Read from left to right: every negative token belongs to a run that was begun just before."""
    i = 0
    while i < len(tokens):
        if tokens[i] >= 0:
            i += 1
            continue
        if not -1 - tokens[i] & 1 << 30:
            return False
        end = i + 1
        while end < len(tokens) and tokens[end] < 0 and not -1 - tokens[end] & 1 << 30:
            end += 1
        is_flat = -1 - tokens[i] & 1 << 29
        if is_flat and end - i > 1 and not 0 < -1 - tokens[i + 1] <= end - i:
            return False
        i = end
    return True


forged = st.lists(
    st.one_of(
        st.integers(INT_MIN, INT_MAX),
        st.integers(-20, 3),
        st.sampled_from([INT_MIN, -1, 0, -1 - (1 << 30), -1 - (3 << 29), -(1 << 30), -1 - (1 << 29)]),
    ),
    max_size=30,
)


@given(forged)
def test_forged_tokens_are_told_from_spelled_ones(tokens):
    """And nothing that reads them raises."""
    values = array(tokens)
    assert is_valid_layout(values) == naive_is_spelled(tokens)
    found = runs_in(values)
    assert all(0 <= run.start < run.end <= len(tokens) for run in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert len(cell_positions(values)) == len(tokens)
    n_positions(values)
    spans_in(values)
    for n in range(len(tokens) + 1):
        span_around(values, n)


@given(mixtures, st.data())
def test_a_run_without_its_beginning_is_not_spelled(parts, data):
    tokens, found, _, _ = lay_out(parts)
    whole = [run for run in found if run.end - run.start > 1]
    assume(whole)
    run = data.draw(st.sampled_from(whole))
    n_gone = data.draw(st.integers(1, run.end - run.start - 1))
    assume(run.start == 0 or tokens[run.start - 1] >= 0)  # else it would lengthen the one before it
    del tokens[run.start : run.start + n_gone]
    assert not is_valid_layout(array(tokens))


def is_cut(tokens, n: int) -> bool:
    return any(run.start < n < run.end for run in runs_in(tokens))


def naive_reusable(held, prompt) -> int:
    """The last place where a prompt can be cut, among all that both begin with: text at multiples behind the
    run before it, so that a chunk is left; runs, and texts that are followed by one in both, at their end."""
    n_common = common_prefix(held, prompt)
    found = runs_in(prompt)
    cuts = {run.end for run in found}
    cuts |= {run.start for run in found if len(held) > run.start and held[run.start] < 0}
    starts, ends = [0, *(run.end for run in found)], [*(run.start for run in found), len(prompt)]
    for start, end in zip(starts, ends, strict=True):
        cuts |= set(range(start, end - MIN_CHUNK + 1, ALIGNMENT))
    possible = [n for n in cuts if MIN_CHUNK <= n <= n_common and n < len(prompt)]
    return max(possible, default=0)


few_runs = st.lists(st.one_of(texts, runs(contents=1)), min_size=1, max_size=6)


@st.composite
def alike(draw) -> tuple[np.ndarray, np.ndarray]:
    """What is held, and a prompt that begins like it."""
    shared = draw(few_runs)
    held = lay_out([*shared, *draw(few_runs)])[0]
    prompt = lay_out([*shared, *draw(few_runs)])[0]
    return array(held[: draw(st.integers(0, len(held)))]), array(prompt)


@given(alike())
def test_what_is_reused_ends_where_a_chunk_could_have(pair):
    held, prompt = pair
    n = reusable(held, prompt)
    assert not is_cut(prompt, n)
    assert n < len(prompt)
    assert n <= common_prefix(held, prompt)
    assert n == naive_reusable(held, prompt)


@given(alike(), st.integers(0, 80))
def test_what_serves_only_together_is_whole_or_not_at_all(pair, n_fixed):
    held, prompt = pair
    n_fixed = min(n_fixed, len(held))
    n = reusable(held, prompt, n_fixed)
    assert n == 0 or n_fixed <= n <= common_prefix(held, prompt)
    assert n < len(prompt)
    assert not is_cut(prompt, n)


def old_reusable(held, prompt, n_fixed=0) -> int:
    """The rule as it was before there were media."""
    n = min(common_prefix(held, prompt), len(prompt) - MIN_CHUNK)
    if n < n_fixed:
        return 0
    n = max(align(n), n_fixed)
    return n if n >= MIN_CHUNK else 0


words = st.lists(st.integers(0, 1), max_size=40).map(array)


@given(words, words, st.integers(0, 40), st.integers(0, 40))
def test_nothing_has_changed_for_prompts_without_media(shared, rest, n_held, n_fixed):
    held, prompt = shared[:n_held], np.concatenate([shared, rest])
    n_fixed = min(n_fixed, len(held))
    assert reusable(held, prompt, n_fixed) == old_reusable(held, prompt, n_fixed)


PICTURE = placeholder_tokens(b"a picture", 20, 20, False)
OTHER = placeholder_tokens(b"another", 20, 20, False)
TEXT = [1] * 10


@pytest.mark.parametrize(
    ("held", "prompt", "n"),
    [
        ([*TEXT, *PICTURE, *TEXT], [*TEXT, *PICTURE, *TEXT, *TEXT], 40 - 2),
        ([*TEXT, *PICTURE], [*TEXT, *PICTURE, *TEXT], 30),
        ([*TEXT, *PICTURE, 1], [*TEXT, *PICTURE, 1, 2, 3], 30),
        ([*TEXT, *PICTURE], [*TEXT, *PICTURE], 10),
        ([*TEXT, *PICTURE[:19]], [*TEXT, *PICTURE, *TEXT], 10),
        ([*TEXT, *OTHER], [*TEXT, *PICTURE, *TEXT], 10),
        ([*TEXT], [*TEXT, *PICTURE, *TEXT], 0),
        ([*TEXT, *TEXT], [*TEXT, *PICTURE, *TEXT], 0),
        ([*TEXT, *TEXT, 2], [*TEXT, *TEXT, *PICTURE], 12),
        ([*PICTURE, *OTHER[:3]], [*PICTURE, *OTHER, *TEXT], 20),
        ([*PICTURE], [*PICTURE, *OTHER, *TEXT], 20),
        ([1, 1, *PICTURE[:5]], [1, 1, *PICTURE, *TEXT], 0),
    ],
)
def test_how_much_of_a_pictured_prompt_is_reused(held, prompt, n):
    assert reusable(array(held), array(prompt)) == n


@st.composite
def places(draw) -> list[MediaSpan]:
    """The pictures of a context, with or without text between them."""
    found, at = [], draw(st.integers(0, 8))
    for _ in range(draw(st.integers(0, 4))):
        n = draw(st.integers(1, 15))
        found.append(MediaSpan(at, at + n))
        at += n + draw(st.integers(0, 8))
    return found


@given(places(), st.integers(0, 70), st.integers(1, 70))
def test_a_shift_spares_media(found, keep, discard):
    kept, discarded = spare_media(found, keep, discard)
    for cut in (kept, kept + discarded):
        assert not any(span.start < cut < span.end for span in found)
    assert kept >= 0
    assert discarded >= 1
    assert kept + discarded >= keep + discard
    cuts = (keep, keep + discard)
    if not any(span.start < cut < span.end for span in found for cut in cuts):
        assert (kept, discarded) == (keep, discard)


@given(places(), st.integers(0, 10), st.integers(-1, 100), st.integers(0, 100), st.booleans())
def test_a_shift_of_a_pictured_context_makes_room_and_stays_inside(
    found, n_text, n_keep, n_discard, adds_bos
):
    n_tokens = max((span.end for span in found), default=0) + n_text
    assume(n_tokens >= 8)
    keep, discard = plan_shift(n_tokens, n_tokens + 1, n_tokens // 2, n_keep, n_discard, adds_bos)
    kept, discarded = spare_media(found, keep, discard)
    assert 1 <= discarded <= n_tokens - kept


@pytest.mark.parametrize(
    ("keep", "discard", "expected"),
    [
        (5, 10, (5, 25)),  # to behind the picture
        (15, 10, (10, 20)),  # only the picture: all of it
        (15, 20, (30, 5)),
        (10, 20, (10, 20)),
        (0, 10, (0, 10)),
        (30, 3, (30, 3)),
    ],
)
def test_pictures_stay_or_go_as_a_whole(keep, discard, expected):
    assert spare_media([MediaSpan(10, 30)], keep, discard) == expected


prompt_plans = st.lists(
    st.tuples(st.integers(1, 200), st.sampled_from([(False, False), (True, False), (True, True)])), max_size=5
).map(lambda specs: [PendingPrompt(10 + i, n, b"", *how) for i, (n, how) in enumerate(specs)])


@given(st.lists(st.integers(0, 9), unique=True), prompt_plans, st.integers(-50, 400), st.integers(32, 256))
def test_media_are_alone_in_a_batch_and_whole_if_they_must_be(slots, prompts, budget, n_ubatch):
    for mixes in (False, True):
        shape = BatchShape(512, n_ubatch, mixes)
        batches = plan_batches([NextToken(slot) for slot in slots], prompts, budget, shape)
        of = {part.slot: (part, batch) for batch in batches for part in batch}
        assert {*slots, *(prompt.slot for prompt in prompts[:1])} <= set(of)
        for prompt in (each for each in prompts if each.slot in of):
            part, batch = of[prompt.slot]
            if prompt.is_alone:
                assert batch == (part,)
            if prompt.is_whole:
                assert part.n == prompt.n_pending
            else:
                assert 0 < part.n <= min(n_ubatch, prompt.n_pending)
                assert part.n == prompt.n_pending or part.n % ALIGNMENT == 0
                assert part.n == prompt.n_pending or prompt.n_pending - part.n >= MIN_CHUNK


def test_text_of_others_is_batched_beside_media():
    prompts = [PendingPrompt(1, 20), PendingPrompt(2, 20, is_alone=True), PendingPrompt(3, 20)]
    batches = plan_batches([NextToken(0)], prompts, 100, BatchShape(512, 64, mixes=True))
    assert batches == [(PromptPart(0, 1), PromptPart(1, 20), PromptPart(3, 20)), (PromptPart(2, 20),)]


def test_a_whole_picture_takes_more_than_the_budget():
    (batch,) = plan_batches(
        [], [PendingPrompt(0, 60, is_alone=True, is_whole=True)], 16, BatchShape(512, 64, False)
    )
    assert batch == (PromptPart(0, 60),)


def test_nothing_is_moved_where_there_are_media():
    """What is further back is found in text, but not among pictures."""
    late = [2] * 30
    assert plan_reuse(array([*TEXT, *[3] * 8, *late]), array([*TEXT, *late, *TEXT]), 8) == [Move(18, 10, 30)]
    for held, prompt in [
        ([*TEXT, *PICTURE, *late], [*TEXT, *late, *TEXT]),
        ([*TEXT, *[3] * 8, *late], [*TEXT, *late, *PICTURE]),
        ([*TEXT, *[3] * 8, *PICTURE, *TEXT], [*TEXT, *PICTURE, *TEXT, *TEXT]),
    ]:
        assert plan_reuse(array(held), array(prompt), 8) == []


@pytest.fixture
def ses1():
    return Ses1(FakeBackend(), Grouping(1, 512))


def saved_of(tokens) -> SavedState:
    backend = FakeBackend()
    backend.sequences[0] = list(tokens)
    return SavedState(array(tokens), backend.save(0), NEVER)


GOOD = [
    [*TEXT, *PICTURE, *TEXT],
    [*PICTURE, *PICTURE],
    [*PICTURE],
    [*TEXT, *PICTURE[:7]],
    [*TEXT, *placeholder_tokens(b"flat", 12, 4, True), *TEXT],
    [*TEXT, *PICTURE, *TEXT, *placeholder_tokens(b"the rest of it", 5, 5, False, is_more=True)],
    [*placeholder_tokens(b"small", 1, 1, True), *placeholder_tokens(b"small", 1, 1, False)],
]


@pytest.mark.parametrize("tokens", GOOD)
def test_a_file_with_media_comes_back_as_it_was(ses1, tokens):
    with file_of() as fd:
        ses1.write(fd, saved_of(tokens))
        for is_ours in (False, True):
            saved = ses1.read(fd, is_ours)
            assert saved.tokens.tolist() == tokens
            assert bytes(saved.state[8:]) == saved_of(tokens).state[8:]
        assert read_title(fd).tokens.tolist() == tokens


@pytest.mark.parametrize(
    "tokens",
    [
        [-1],
        [1, 2, -2, 3],
        [*TEXT, *PICTURE[1:]],
        [*PICTURE[1:]],
        [*PICTURE[:5], 1, *PICTURE[5:]],
        [PICTURE[0], 1, PICTURE[1]],
        [*TEXT, *placeholder_tokens(b"flat", 12, 4, True)[:3]],  # of a flat one, only all serves
        [-1 - (3 << 29), -1],  # flat, and takes no position
        [-1 - (3 << 29), -1 - 4, -1],  # more positions than tokens
        [-1 - (3 << 29), -1 - (1 << 29)],
        [*TEXT, INT_MIN, -(1 << 30)],
        [*TEXT, 64],
        [*PICTURE, INT_MAX],
    ],
)
@pytest.mark.parametrize("is_ours", [False, True])
def test_a_file_with_tokens_that_nobody_spelled_is_refused(ses1, tokens, is_ours):
    with file_of() as fd:
        ses1.write(fd, saved_of(tokens))
        with pytest.raises(InvalidRequest, match="outside this model's vocabulary"):
            ses1.read(fd, is_ours)


@given(forged)
def test_a_file_with_any_tokens_is_read_or_refused(tokens):
    ses1 = Ses1(FakeBackend(), Grouping(1, 512))
    is_good = naive_is_spelled(tokens) and all(token < FakeVocab.n_tokens for token in tokens)
    with file_of() as fd, contextlib.ExitStack() as stack:
        ses1.write(fd, saved_of(tokens))
        if not is_good:
            stack.enter_context(pytest.raises(InvalidRequest))
        assert ses1.read(fd, is_ours=False).tokens.tolist() == tokens
