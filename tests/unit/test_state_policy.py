"""Pure decisions about conversation state, against the simplest thing that could be right."""

from __future__ import annotations

import itertools
import pickle
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import ALIGNMENT, MIN_CHUNK, DecodeStatus, common_prefix
from corral.core.errors import CorralError
from corral.core.result import CacheReport, Tier
from corral.core.settings import EngineSettings
from corral.engine.copy_cost import CopyCost
from corral.engine.cost import CostModel
from corral.engine.grouping import Grouping
from corral.engine.kv import KvStore
from corral.engine.prefix import Prefix, PrefixOrigin, replaces, usable
from corral.engine.ram_cache import RamCache
from corral.engine.report import explain, whole_report
from corral.engine.reuse import Move, plan_reuse
from corral.engine.saved import NEVER, SavedState
from corral.engine.ses1 import Ses1
from corral.engine.slot import Slot
from tests.tools.examples import examples
from tests.unit.engine_harness import EngineHarness, task
from tests.unit.fake import FakeBackend, Wish


def array(values):
    return np.array(list(values), np.int32)


def wish(prompt: np.ndarray, accepts_shifted: bool = False) -> Any:
    """A request, as far as caches look at it."""
    return Wish(prompt, accepts_shifted)


def store(backend, grouping=None):
    grouping = grouping or Grouping()
    settings = EngineSettings(model="fake", cache_ram_mib=0)
    copy_cost = CopyCost(CostModel(), is_free=True, clock=time.perf_counter)
    return KvStore(backend, settings, Ses1(backend, grouping), grouping, copy_cost)


runs = st.lists(st.integers(0, 2), max_size=40)
few_tokens = st.lists(st.integers(0, 1), max_size=60)


# --- grouping


class OldServer:
    """llama-server's loop of self-extend, with the positions of a KV cache in a list."""

    def __init__(self, ga_n: int, ga_w: int) -> None:
        self.ga_n, self.ga_w, self.ga_i = ga_n, ga_w, 0
        self.n_past = 0
        self.positions: list[int] = []

    def evaluate_token(self) -> None:
        self.positions.append(self.n_past)
        self.n_past += 1
        while self.ga_n > 1 and self.n_past >= self.ga_i + self.ga_w:
            ib = self.ga_n * self.ga_i // self.ga_w
            bd = self.ga_w // self.ga_n * (self.ga_n - 1)
            dd = self.ga_w // self.ga_n - ib * bd - self.ga_w
            start = self.ga_i + ib * bd
            self._change(self.ga_i, self.n_past, lambda p, by=ib * bd: p + by)
            self._change(start, start + self.ga_w, lambda p: p // self.ga_n)
            self._change(start + self.ga_w, self.n_past + ib * bd, lambda p, by=dd: p + by)
            self.n_past -= bd
            self.ga_i += self.ga_w // self.ga_n

    def _change(self, start, end, change) -> None:
        self.positions = [change(p) if start <= p < end else p for p in self.positions]


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 120))
def test_grouping_is_what_the_old_servers_loop_comes_to(n, n_groups, n_tokens):
    grouping, old = Grouping(n, n * n_groups), OldServer(n, n * n_groups)
    for _ in range(n_tokens):
        old.evaluate_token()
    assert grouping.positions(n_tokens).tolist() == old.positions
    assert grouping.positions(n_tokens).dtype == np.int32
    assert grouping.position(n_tokens) == old.n_past
    assert grouping.n_grouped(n_tokens) == old.ga_i * n


@given(st.integers(2, 5), st.integers(1, 6), st.integers(0, 120))
def test_a_chunk_ends_where_a_run_is_complete(n, n_groups, n_tokens):
    """Within the room nothing is grouped, so that a chunk may be evaluated at once; at its end it is."""
    grouping = Grouping(n, n * n_groups)
    room = grouping.room(n_tokens)
    assert 1 <= room <= grouping.width
    assert grouping.n_grouped(n_tokens + room - 1) == grouping.n_grouped(n_tokens)
    assert grouping.n_grouped(n_tokens + room) == n_tokens + room


def test_without_grouping_there_is_room_for_everything_and_nothing_is_fixed():
    grouping = Grouping(1, 8)
    assert not grouping.is_active
    assert grouping.room(100) >= 2**31 - 1
    assert grouping.n_grouped(100) == 0


def test_a_width_must_hold_whole_groups():
    with pytest.raises(CorralError, match=r"--grp-attn-w.*9.*--grp-attn-n.*2"):
        Grouping(2, 9)


def test_grouping_needs_a_context_that_can_be_shifted_and_cut():
    for change in ({"can_shift": False}, {"can_cut": False}):
        backend = FakeBackend()
        vars(backend).update(change)
        with pytest.raises(CorralError, match="--grp-attn-n"):
            store(backend, Grouping(2, 8))
    assert not store(FakeBackend(), Grouping(2, 8)).can_shift


class GroupedBackend(FakeBackend):
    """Tokens have positions of their own, which libllama would divide."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.positions: list[list[int]] = [[] for _ in range(self.n_seq)]

    def decode(self, chunks):
        for chunk in chunks:
            assert chunk.pos == _next(self.positions[chunk.seq]), "positions must be consecutive"
        counted = [msgspec.structs.replace(chunk, pos=len(self.sequences[chunk.seq])) for chunk in chunks]
        status = super().decode(counted)
        if status is DecodeStatus.OK:
            for i, chunk in enumerate(chunks):
                positions = self.positions[chunk.seq]
                positions += range(chunk.pos, chunk.pos + len(chunk.tokens))
                known = (*self.sequences[chunk.seq], *positions)
                self._logits[i] = [np.array([hash(known) % 100003], np.float64)]
        return status

    def trim(self, seq, n):
        positions = self.positions[seq]
        n_left = sum(position < n for position in positions)
        assert n_left in (0, len(positions)) or positions[n_left - 1] < n == positions[n_left], (
            "it cuts a group"
        )
        del positions[n_left:]
        return super().trim(seq, n_left)

    def share_prefix(self, src, dst, n):
        self.sequences[dst], self.positions[dst] = list(self.sequences[src]), list(self.positions[src])
        return self.trim(dst, n)

    def compress(self, seq, run, width, n):
        positions, start = self.positions[seq], run * width
        base = _next(positions[:start])
        assert positions[start : start + width] == list(range(base, base + width))
        behind = [position - width + width // n for position in positions[start + width :]]
        positions[start:] = [*(base + i // n for i in range(width)), *behind]

    def save(self, seq, memory=None):
        return b"MAGICseq" + pickle.dumps(list(zip(self.sequences[seq], self.positions[seq], strict=True)))

    def load(self, seq, state, position):
        pairs = pickle.loads(state[8:])
        self.sequences[seq] = [token for token, _ in pairs]
        self.positions[seq] = [place for _, place in pairs]
        assert position == _next(self.positions[seq])
        return True


def _next(positions):
    return positions[-1] + 1 if positions else 0


talks = st.lists(
    st.tuples(
        st.integers(-1, 1),  # the slot whose content it continues, if any
        st.integers(0, 90),
        st.lists(st.integers(1, 3), min_size=1, max_size=12),
        st.integers(1, 30),
        st.integers(-1, 1),
        st.integers(0, 60),
    ),
    min_size=2,
    max_size=7,
)


@given(talks, st.sampled_from([(2, 8), (4, 16), (4, 8)]), st.sampled_from([0, 64]))
@examples(60)
def test_grouped_contexts_answer_as_if_alone_whatever_is_cached(script, how, ram):
    bench, tasks = _grouped_bench(how, ram), []
    for i, (source, n, tail, n_predict, id_slot, n_steps) in enumerate(script):
        head = bench.slots[source].tokens.view[:n].tolist() if source >= 0 else list(range(1, n % 60))
        tasks.append(task(i, [*head, *tail], n_predict=n_predict, id_slot=id_slot, n_cache_reuse=i % 2 * 8))
        bench.engine.handle(tasks[-1])
        for _ in range(n_steps):
            if bench.engine.has_work:
                bench.engine.step()
    bench.run()
    for one in tasks:
        by_itself = _grouped_bench(how, 0)
        by_itself.run(one)
        assert bench.tokens(one.id) == by_itself.tokens(one.id)


def _grouped_bench(how, ram):
    return EngineHarness(
        GroupedBackend(n_seq=2, n_ubatch=16), grp_attn_n=how[0], grp_attn_w=how[1], cache_ram_mib=ram
    )


# --- runs that move


def old_reuse(held, prompt, n_past, n_cache_reuse):
    """llama-server's loop over its cache, which ends where the prompt does."""
    moves, head_c, head_p = [], n_past, n_past
    while head_c < len(held) and head_p < len(prompt):
        n_match = 0
        while (
            head_c + n_match < len(held)
            and head_p + n_match < len(prompt)
            and held[head_c + n_match] == prompt[head_p + n_match]
        ):
            n_match += 1
        if n_match >= n_cache_reuse:
            moves.append((head_c, head_p, n_match))
            head_c += n_match
            head_p += n_match
        else:
            head_c += 1
    return moves


@st.composite
def held_and_prompt(draw):
    """A prompt out of pieces of what is held, so that there is something to find."""
    held = draw(few_tokens)
    prompt = held[: draw(st.integers(0, 12))]
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, 60))
        prompt = (
            prompt
            + held[start : start + draw(st.integers(0, 20))]
            + draw(st.lists(st.integers(0, 2), max_size=3))
        )
    return held, prompt


@given(held_and_prompt(), st.integers(1, 9))
def test_reuse_finds_what_the_old_servers_loop_finds(case, n_min):
    held, prompt = case
    part = prompt[: max(0, len(prompt) - MIN_CHUNK)]
    n_past = common_prefix(array(held), array(part))
    moves = plan_reuse(array(held), array(prompt), n_min)
    assert [(m.start, m.to, m.n) for m in moves] == old_reuse(held, part, n_past, n_min)


@given(held_and_prompt(), st.integers(1, 9))
def test_moved_runs_make_up_the_beginning_of_the_prompt(case, n_min):
    """Carried out one after the other, in place: no move destroys what a later one needs."""
    held, prompt = case
    backend = FakeBackend(n_seq=1)
    backend.sequences[0] = list(held)
    moves = plan_reuse(array(held), array(prompt), n_min)
    for move, following in itertools.pairwise(moves):
        assert move.start + move.n <= following.start
        assert move.end == following.to
    for move in moves:
        assert move.n >= n_min
        backend.move(0, move.start, move.start + move.n, move.to)
    n = moves[-1].end if moves else 0
    assert backend.sequences[0][:n] == prompt[:n]
    assert not n or n <= len(prompt) - MIN_CHUNK, "something must be left to evaluate"


def test_tokens_are_found_at_whole_tokens_only():
    """Byte for byte the run would also be found in the middle of others."""
    held = array([0x100, 0x200, 0x300, 9, 1, 2])
    prompt = array([1, 2, *[9] * MIN_CHUNK])
    assert plan_reuse(held, prompt, 2) == [Move(4, 0, 2)]


# --- what a kept run can give


@given(runs, st.integers(0, 45) | st.just(NEVER), runs, st.integers(0, 40), st.booleans())
def test_as_much_is_usable_as_is_the_same_aligned_and_evaluated_in_place(
    held, shifted_from, prompt, n_fixed, takes
):
    n_fixed = min(n_fixed, len(held))
    n_held = len(held) if takes else min(len(held), shifted_from)

    def may_be_used(n: int) -> bool:
        return (
            n <= n_held
            and held[:n] == prompt[:n]
            and len(prompt) - n >= MIN_CHUNK
            and (n == n_fixed or (n > n_fixed and n % ALIGNMENT == 0))
        )

    expected = max((n for n in range(MIN_CHUNK, len(held) + 1) if may_be_used(n)), default=0)
    saved = SavedState(array(held), b"", shifted_from)
    assert usable(saved, wish(array(prompt), takes), lambda n: n_fixed if n == len(held) else -1) == expected


@st.composite
def related_runs(draw):
    """Two runs of which one often continues the other, and a prompt that begins like them."""
    few = st.lists(st.integers(0, 2), max_size=6)
    first = draw(st.lists(st.integers(0, 2), min_size=8, max_size=40))
    second = [*first[: draw(st.sampled_from([40, 40, 12]))], *draw(few)]
    prompt = [*second[: draw(st.integers(8, 46))], *draw(few), *[1] * MIN_CHUNK]
    places = st.integers(0, 45) | st.just(NEVER)
    old, new = (SavedState(array(run), b"", draw(places)) for run in (first, second))
    return old, new, array(prompt)


@given(related_runs(), st.sampled_from([lambda n: 0, lambda n: n, lambda n: n - n % 16]), st.booleans())
def test_what_replaces_a_run_gives_all_that_the_run_gave(case, n_fixed, accepts_shifted):
    old, new, prompt = case
    wished = wish(prompt, accepts_shifted)
    if replaces(new, old, n_fixed):
        assert usable(new, wished, n_fixed) >= usable(old, wished, n_fixed)
    assert replaces(old, old, n_fixed)


def test_the_ram_tier_gives_what_was_shifted_only_to_those_who_take_it():
    cache = RamCache(100)
    cache.put(SavedState(array(range(40)), b"a", shifted_from=14))
    prompt = array(range(60))
    assert cache.get(wish(array([*range(8), *range(30, 60)]))) is not None
    assert cache.get(wish(array(range(20, 60)), True)) is None
    cache.put(SavedState(array([*range(20), 1]), b"b"))
    assert cache.get(wish(prompt)).state == b"b"
    assert cache.get(wish(prompt, True)).state == b"a"


def test_what_the_ram_tier_has_no_room_for_is_handed_on():
    gone = []
    cache = RamCache(2, on_evict=gone.append)
    small, other, large = (
        SavedState(array([1]), b"a"),
        SavedState(array([2]), b"bb"),
        SavedState(array([3]), b"ccc"),
    )
    for saved in (small, other, large):
        cache.put(saved)
    assert gone == [small, large]
    assert list(cache) == [other]


# --- where a context was shifted

changes = st.lists(
    st.tuples(st.sampled_from(["shift", "full", "reuse", "trim", "fork", "reload", "more"]), st.data()),
    max_size=12,
)


@given(changes)
def test_it_is_known_which_tokens_are_not_where_they_were_evaluated(script):
    """Beside the slot, a list that says of each token whether something before it moved by itself."""
    backend = FakeBackend(n_seq=2, n_ctx=64)
    kv = store(backend)
    slot, other, moved = Slot(0, 64), Slot(1, 64), []
    for what, data in script:
        n = len(moved)
        n_keep = data.draw(st.integers(0, max(0, n - 2)))
        n_discard = data.draw(st.integers(1, max(1, n - n_keep - 1)))
        if what == "more":
            fresh = array(range(data.draw(st.integers(1, 64 - n)) if n < 64 else 0))
            backend.sequences[slot.id] += fresh.tolist()
            kv.extend(slot, fresh)
            moved += [any(moved)] * len(fresh)
        elif what == "trim":
            moved = moved[: kv.trim(slot, n_keep)]
        elif what == "fork":
            moved = moved[: kv.copy(slot, other, n_keep)]
            slot, other = other, slot
        elif what == "reload":
            assert kv.load(other, kv.save(slot))
            slot, other = other, slot
        elif n > 1:
            del moved[n_keep : n_keep + n_discard]
            if what == "reuse":
                kv.reuse(slot, [Move(n_keep + n_discard, n_keep, n - n_keep - n_discard)])
            else:
                kv.shift(slot, n_keep, n_discard)
            if what == "full":
                slot.shifted_from = min(
                    slot.shifted_from, n_keep
                )  # as the engine does when a context is full
            if what != "shift":
                moved = [*moved[:n_keep], *[True] * (len(moved) - n_keep)]
        assert len(slot.tokens) == len(moved)
        assert slot.tokens.view.tolist() == backend.sequences[slot.id]
        assert slot.shifted_from == (moved.index(True) if True in moved else NEVER)


# --- explanations


PROMPT = array(range(100))
OTHER = array([*range(70), 5, 6])
SAVED = SavedState(OTHER, b"")


@pytest.mark.parametrize(
    ("prefix", "stored", "moves", "tier", "id_slot", "n_cached", "n_moved"),
    [
        (Prefix(PrefixOrigin.OWN, 0), None, [], Tier.NONE, -1, 0, 0),
        (Prefix(PrefixOrigin.OWN, 64), None, [], Tier.LIVE, 2, 64, 0),
        (Prefix(PrefixOrigin.SLOT, 68, 1), SAVED, [], Tier.LIVE, 1, 68, 0),
        (Prefix(PrefixOrigin.STORE, 68), SAVED, [], Tier.RAM, -1, 68, 0),
        (Prefix(PrefixOrigin.STORE, 68), SavedState(OTHER, b"", is_from_disk=True), [], Tier.DISK, -1, 68, 0),
        (Prefix(PrefixOrigin.OWN, 0), None, [Move(9, 0, 5), Move(20, 5, 7)], Tier.LIVE, 2, 12, 12),
        (Prefix(PrefixOrigin.STORE, 8), SAVED, [Move(30, 8, 10)], Tier.RAM, -1, 18, 10),
    ],
)
def test_a_report_names_the_tier(prefix, stored, moves, tier, id_slot, n_cached, n_moved):
    report = explain(PROMPT, prefix, 2, stored, moves, [array([]), OTHER])
    assert report == CacheReport(
        tier=tier, id_slot=id_slot, n_cached=n_cached, n_moved=n_moved, n_common=70, token=70, cached_token=5
    )


@given(st.lists(runs, min_size=1, max_size=6), runs)
def test_a_report_names_the_first_difference_from_the_nearest(held, prompt):
    report = explain(array(prompt), Prefix(PrefixOrigin.OWN, 0), 0, None, [], [array(run) for run in held])
    n = report.n_common
    assert [run for run in held if run[: n + 1] == prompt[: n + 1] and min(len(run), len(prompt)) > n] == []
    nearest = [run for run in held if run[:n] == prompt[:n] and len(run) >= n]
    assert report.token == (prompt[n] if n < len(prompt) else None)
    assert report.cached_token in [run[n] if n < len(run) else None for run in nearest]


def test_the_report_of_a_twin():
    assert whole_report(3, 41) == CacheReport(tier=Tier.LIVE, id_slot=3, n_cached=41, n_common=41)
