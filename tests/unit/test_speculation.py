"""The law of speculative decoding, on the fake backend: whatever the drafts are, answers stay the same."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import CorralError
from corral.core.params import MAX_AHEAD, GenerationParams, Guidance, SamplingParams, SpeculativeParams
from corral.core.result import Done, Failed, Timings, TokenProbs, Tokens
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, Stop, Task
from corral.engine import loop, speculation
from corral.engine.cost import CostModel, Load
from corral.engine.ngram_cache import NgramCache, write_cache
from corral.engine.speculation import Speculation
from tests.tools.examples import examples
from tests.tools.keyed import uniform
from tests.tools.wait import wait_until
from tests.unit.engine_harness import EngineHarness, grammar, task
from tests.unit.fake import EOG, N_VOCAB, FakeBackend, FakeSampler

NO_TIME = Timings(cache_n=0, prompt_n=0, prompt_ms=0, predicted_n=0, predicted_ms=0)
ALWAYS = "corral.engine.speculation.plan_length"
SOURCES = ("lookup", "static", "dynamic", "model")
RIGHT = ((MAX_AHEAD, 0),)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def as_long_as_possible(acceptance: float, n_max: int, *rest: object) -> int:
    return n_max


class RepeatingSampler(FakeSampler):
    def sample(self, logits: np.ndarray, index: int, redraw: Any = None) -> tuple[int, TokenProbs | None]:
        chance = uniform(self._params.seed, index)
        is_new = chance < 0.1
        row = logits[:1] if is_new else logits[-1:] - int(chance * 1e6)
        return super().sample(row, index)


class RepeatingBackend(FakeBackend):
    """What follows is mostly a matter of the last two tokens: answers go round in circles."""

    def _evaluate(self, chunk: Chunk) -> list[np.ndarray]:
        rows = super()._evaluate(chunk)
        sequence = self.sequences[chunk.seq]
        ends = range(len(sequence) - len(rows) + 1, len(sequence) + 1)
        habits = [1 + zlib.crc32(bytes(sequence[max(0, end - 2) : end])) % 6 for end in ends]
        return [np.append(row, habit) for row, habit in zip(rows, habits, strict=True)]

    def open_sampler(
        self, params: SamplingParams, prompt: Sequence[int], grammar: str | None = None
    ) -> FakeSampler:
        self.samplers.append(RepeatingSampler(params, grammar))
        return self.samplers[-1]


class FakeDrafter:
    """Is told what will be said. `script` has for each draft how many tokens it gets right and how many
    wrong ones it puts behind them, or None: it has not caught up. Then it begins again."""

    token_ms = 0.0

    def __init__(self, script: Iterable[tuple[int, int] | None] = RIGHT) -> None:
        self._script = itertools.cycle(script)
        self._now: tuple[int, int] | None = None
        self.answers: dict[int, list[int]] = {}
        self.forgotten: list[int] = []
        self.slots: list = []

    def catch_up(self, seq: int, tokens: np.ndarray, is_brief: bool) -> bool:
        slot = self.slots[seq]
        assert tokens.tolist() == [*slot.tokens.view, *slot.request.pending]
        self._now = next(self._script)
        return self._now is not None

    def draft(self, seq: int, n: int, p_min: float) -> list[int]:
        assert self._now is not None, "it said that there is more to take in"
        n_right, n_wrong = self._now
        request = self.slots[seq].request
        answer = self.answers.get(request.id, [])[request.n_generated :][:n]
        right = answer[:n_right]
        wrong = [(token + 1) % N_VOCAB for token in [*answer[n_right:], *[7] * n_wrong][:n_wrong]]
        return [*right, *wrong][:n]

    def forget(self, seq: int) -> None:
        self.forgotten.append(seq)


class DraftHarness(EngineHarness):
    """Looks at every draft that is evaluated."""

    def __init__(
        self,
        backend: FakeBackend | None = None,
        script: Iterable[tuple[int, int] | None] | None = None,
        **options,
    ) -> None:
        backend = backend or RepeatingBackend()
        self.drafter = backend.drafter = None if script is None else FakeDrafter(script)
        super().__init__(backend, **options)
        self.speculation = self.engine._speculation
        self.speculation.n_exact = MAX_AHEAD
        self.engine._decoder.cost.observe(Load(n_generating=1), 1.0)
        self.drafts: list[list[int]] = []
        if self.drafter is not None:
            self.drafter.slots = self.slots
        self._decode = backend.decode
        backend.decode = self._watched

    @property
    def sizes(self) -> list[int]:
        return [len(draft) for draft in self.drafts]

    def _watched(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        for chunk in chunks:
            if chunk.logits > 1 and self.engine.has_work:
                self._check(chunk)
        return self._decode(chunks)

    def _check(self, chunk: Chunk) -> None:
        request = self.slots[chunk.seq].request
        n, params = chunk.logits - 1, request.task.params
        assert self.backend.can_cut or self.slots[chunk.seq].mark is not None
        assert chunk.tokens[:-n].tolist() == request.pending.tolist()
        assert len(request.pending) == 1
        assert max(params.speculative.n_min, 1) <= n <= params.speculative.n_max
        assert n < self.speculation.n_exact
        assert n < params.n_predict - request.n_generated or params.n_predict < 0
        assert chunk.pos + len(chunk.tokens) < self.backend.n_ctx
        assert request.positive is None
        assert request.negative is None
        assert request.repeated_token is None
        self.drafts.append(chunk.tokens[-n:].tolist())


def plain(one: Task, backend: FakeBackend, **options) -> EngineHarness:
    """An engine that drafts nothing, after the task."""
    bench = EngineHarness(backend, **{**options, "lookup": False})
    bench.run(one)
    assert bench.done(one.id).timings.draft_n == 0
    return bench


def told(bench: EngineHarness, id: int) -> list[tuple]:
    """All that can be known of an answer, but how long it took."""
    events: list[tuple] = [(e.tokens, e.text, e.probs, e.timings.forced_n) for e in bench.of(id, Tokens)]
    for done in bench.of(id, Done):
        counts = (done.timings.predicted_n, done.timings.forced_n)
        events.append((msgspec.structs.replace(done, timings=NO_TIME), *counts))
    return events


def failures(bench: EngineHarness) -> list[Failed]:
    return [event for event in bench.events if isinstance(event, Failed)]


def drafting(one: Task, backend: FakeBackend, script=RIGHT, **options) -> DraftHarness:
    """An engine after the task, with a drafter that knows the answer."""
    options = {"lookup": False, **options}
    bench = DraftHarness(backend, script, **options)
    # The expected answer comes from an engine of the same kind that does not draft.
    twin = type(backend)(
        n_seq=backend.n_seq, n_ctx=backend.n_ctx, can_cut=backend.can_cut, mixes_batches=backend.mixes_batches
    )
    bench.drafter.answers[one.id] = plain(one, twin, **options).tokens(one.id)
    bench.run(one)
    return bench


# Anything that a request can ask for.

prompts = st.lists(st.integers(1, 5), min_size=1, max_size=60)
speculatives = st.builds(
    lambda n_max, n_min: SpeculativeParams(n_max=n_max, n_min=n_min),
    st.sampled_from([0, 1, 2, 5, 16, 16, 16, 64]),
    st.sampled_from([0, 0, 0, 1, 3, 9]),
)
scripts = st.lists(
    st.none() | st.tuples(st.integers(0, MAX_AHEAD), st.integers(0, 5)) | st.just(RIGHT[0]),
    min_size=1,
    max_size=5,
)


@st.composite
def tasks(draw: st.DrawFn, id: int = 0, shifts: bool = False) -> Task:
    bias = draw(st.sampled_from([((EOG, -1.0),), ((EOG, -1.0),), ()]))
    sampling = SamplingParams(
        seed=draw(st.integers(0, 3)), logit_bias=bias, n_probs=draw(st.sampled_from([0, 0, 2]))
    )
    constraint = draw(st.none() | st.none() | st.text("abcdABCDEFGH", min_size=1, max_size=50).map(grammar))
    n_predict = draw(st.integers(0, 60) | st.just(-2) | st.integers(0, 250) | st.just(250 if shifts else -1))
    params = GenerationParams(
        sampling=sampling,
        n_predict=n_predict,
        n_keep=draw(st.sampled_from([0, 3, -1])),
        stop=tuple(draw(st.lists(st.text(" \nabcd", min_size=1, max_size=4), max_size=1))),
        cache_prompt=draw(st.sampled_from([True, True, False])),
        constraint=constraint,
        speculative=draw(speculatives),
    )
    return Task(id=id, prompt=draw(prompts), params=params)


def open_bench(
    backend: FakeBackend, script: Iterable, sources: Iterable[str], answers: dict[int, list[int]], **options
) -> DraftHarness:
    """An engine that drafts from any of the sources, which know a lot about the answers."""
    bench = DraftHarness(
        backend, script if "model" in sources else None, lookup="lookup" in sources, **options
    )
    if bench.drafter is not None:
        bench.drafter.answers = answers
    if "dynamic" in sources:
        bench.speculation._dynamic = NgramCache()
    if "static" in sources:
        bench.speculation._static = NgramCache()
        for answer in answers.values():
            bench.speculation._static.learn([*answer, *answer])
    return bench


sources = st.sets(st.sampled_from(SOURCES), min_size=1)
backends = st.sampled_from([FakeBackend, RepeatingBackend, RepeatingBackend])
planning = st.sampled_from([nullcontext, lambda: mock.patch(ALWAYS, as_long_as_possible)])


@given(st.data(), backends, st.booleans(), st.booleans(), scripts, sources, planning)
@examples(80)
def test_whatever_is_drafted_answers_are_the_same(data, kind, mixes, shifts, script, sources, plan):
    """Many at once that come and go, decodes that are cut short, contexts that shift."""
    options = {"context_shift": shifts}
    size = {"n_seq": 3, "n_ctx": 80 if shifts else 128}
    all_tasks = [data.draw(tasks(id=id, shifts=shifts)) for id in range(data.draw(st.integers(1, 5)))]
    expected = {one.id: plain(one, kind(**size), **options) for one in all_tasks}
    answers = {id: bench.tokens(id) for id, bench in expected.items()}
    with plan():
        bench = open_bench(kind(**size, mixes_batches=mixes), script, sources, answers, **options)
        cancelled = set()
        for one in all_tasks:
            bench.engine.handle(one)
            for _ in range(data.draw(st.integers(0, 8))):
                if bench.engine.has_work:
                    bench.backend.aborts = data.draw(st.integers(0, 9)) == 0
                    bench.backend.leaves_debris = data.draw(st.integers(0, 9)) == 0
                    bench.engine.step()
                    bench.backend.aborts = bench.backend.leaves_debris = False
                    bench.check_mirrors()
            if data.draw(st.integers(0, 5)) == 0 and not bench.of(one.id, Done):
                bench.engine.handle(Cancel(one.id))
                cancelled.add(one.id)
        bench.run()
    for id, undrafted in expected.items():
        whole, found = told(undrafted, id), told(bench, id)
        assert found == (whole[: len(found)] if id in cancelled else whole)
        for event in bench.of(id, Done):
            assert event.timings.draft_n >= event.timings.draft_n_accepted >= 0
    assert not failures(bench)
    assert all(not sampler.is_open for sampler in bench.backend.samplers)
    assert all(slot.is_idle for slot in bench.slots)


@given(st.data(), st.lists(st.tuples(prompts, st.integers(1, 40)), min_size=2, max_size=6), scripts, sources)
@examples(80)
def test_running_out_of_cells_loses_nothing(data, specs, script, sources):
    """Drafts need room too: somebody may have to make it, and gets everything back."""
    n_cells = data.draw(st.integers(90, 160))
    all_tasks = [task(id, prompt, n_predict=n) for id, (prompt, n) in enumerate(specs)]
    expected = {one.id: plain(one, RepeatingBackend(n_ctx=n_cells)) for one in all_tasks}
    answers = {id: bench.tokens(id) for id, bench in expected.items()}
    backend = RepeatingBackend(n_ctx=n_cells, n_cells=n_cells, mixes_batches=True)
    with mock.patch(ALWAYS, as_long_as_possible):
        bench = open_bench(backend, script, sources, answers)
        bench.run(*all_tasks)
    for id, undrafted in expected.items():
        assert told(bench, id) == told(undrafted, id)


def test_who_makes_room_for_a_draft_is_not_evaluated_meanwhile():
    """The batches of a step are planned together; the first may cost the second one's stream its place."""
    all_tasks = [task(id, [1 + id] * 40, n_predict=50) for id in range(2)]
    backend = FakeBackend(n_seq=2, n_ctx=100, n_cells=100, mixes_batches=True)
    bench = DraftHarness(backend, script=[(9, 0)], lookup=False)
    expected = [plain(one, FakeBackend(n_ctx=100)) for one in all_tasks]
    # Only the older one has drafts: what comes behind them is a batch with the token of the other.
    bench.drafter.answers = {0: expected[0].tokens(0)}
    with mock.patch(ALWAYS, as_long_as_possible):
        bench.run(*all_tasks)
    assert bench.drafts
    for id in range(2):
        assert told(bench, id) == told(expected[id], id)


@given(st.data(), backends, st.booleans(), scripts, sources)
@examples(60)
def test_a_lost_engine_goes_on_behind_any_delivered_token(data, kind, shifts, script, sources):
    one = data.draw(tasks(shifts=shifts))
    size, options = {"n_seq": 1, "n_ctx": 80}, {"context_shift": shifts}
    undrafted = plain(one, kind(**size), **options)
    answers = {0: undrafted.tokens(0)}
    with mock.patch(ALWAYS, as_long_as_possible):
        first = open_bench(kind(**size), script, sources, answers, **options)
        first.run(one)
        events = first.of(0, Tokens)
        events = events[: data.draw(st.integers(0, len(events)))]
        delivered = [token for event in events for token in event.tokens]
        if len(delivered) == len(answers[0]):
            return  # all of it, and only its end was lost
        second = open_bench(kind(**size), script, sources, answers, **options)
        second.run(msgspec.structs.replace(one, resume=delivered))
    assert delivered + second.tokens(0) == answers[0]
    assert "".join(event.text for event in events) + second.text(0) == undrafted.text(0)
    assert told(second, 0) == told(undrafted, 0)[len(events) :]


# What drafts are good for.


@pytest.mark.parametrize("n_predict", [1, 2, 3, 18, 19, 60])
def test_right_drafts_save_decodes(n_predict):
    one = task(0, PROMPT, n_predict=n_predict)
    bench = drafting(one, FakeBackend())
    timings = bench.done(0).timings
    assert bench.tokens(0) == plain(one, FakeBackend()).tokens(0)
    assert timings.draft_n == timings.draft_n_accepted == sum(bench.sizes)
    # Every decode gives a token of its own; the prompt's gives the first.
    assert len(bench.backend.batches) == n_predict - timings.draft_n_accepted
    assert len(bench.backend.batches) == 1 + -(-(n_predict - 1) // MAX_AHEAD)


def test_wrong_drafts_cost_nothing_but_time():
    one = task(0, PROMPT, n_predict=40)
    bench = drafting(one, FakeBackend(), script=[(0, 5)])
    timings = bench.done(0).timings
    assert bench.sizes
    assert told(bench, 0) == told(plain(one, FakeBackend()), 0)
    assert timings.draft_n == sum(bench.sizes)
    assert timings.draft_n_accepted == 0


@pytest.mark.parametrize("stop", ["budget", "word", "end", "grammar"])
def test_the_last_draft_is_counted_too(stop):
    """An answer that ends inside a draft: all that was drafted and all that came of it."""
    bias = () if stop == "end" else ((EOG, -1.0),)
    free = task(0, PROMPT, n_predict=200)
    free = Task(
        id=0,
        prompt=PROMPT,
        params=msgspec.structs.replace(free.params, sampling=SamplingParams(seed=4, logit_bias=bias)),
    )
    text = plain(free, FakeBackend()).text(0)
    kinds: dict[str, Any] = {
        "budget": {"n_predict": 8},
        "word": {"stop": (text[5:8],)},
        "end": {},
        "grammar": {"constraint": grammar("abcdefgh")},
    }
    one = Task(id=0, prompt=PROMPT, params=msgspec.structs.replace(free.params, **kinds[stop]))
    bench = drafting(one, FakeBackend())
    assert told(bench, 0) == told(plain(one, FakeBackend()), 0)
    done = bench.done(0)
    assert done.timings.draft_n == sum(bench.sizes) > 0
    # Every decode gives a token of its own, also one that ends the answer as the draft has it.
    assert done.timings.draft_n_accepted == len(bench.tokens(0)) - len(bench.backend.batches) > 0


def test_lookup_finds_what_repeats_itself():
    one = task(0, PROMPT, n_predict=120)
    bench = DraftHarness(RepeatingBackend())
    bench.run(one)
    timings = bench.done(0).timings
    assert told(bench, 0) == told(plain(one, RepeatingBackend()), 0)
    assert timings.draft_n > timings.draft_n_accepted > 20
    assert sum(timings.accepted_per_pos) == timings.draft_n_accepted
    assert list(timings.accepted_per_pos) == sorted(timings.accepted_per_pos, reverse=True)
    assert timings.draft_steps == len([size for size in bench.sizes if size])
    assert len(bench.backend.batches) < 110
    for draft in bench.drafts:
        assert " ".join(map(str, draft[:1])) in " ".join(map(str, [*PROMPT, *bench.tokens(0)]))


def test_drafts_that_do_not_pay_end_soon_and_are_tried_again():
    bench = DraftHarness(FakeBackend(n_ctx=1024), script=[(0, 16)], lookup=False)
    slow_ahead(bench)
    bench.run(task(0, PROMPT, n_predict=600))
    assert 2 < len(bench.drafts) < 90
    assert bench.sizes[-1] < bench.sizes[0]


def slow_ahead(bench: DraftHarness) -> None:
    """Let a decode take half a millisecond more for every token of a draft."""
    watched = bench.backend.decode

    def slow(chunks):
        bench.now += 0.0005 * sum(chunk.logits - 1 for chunk in chunks if chunk.logits > 1)
        return watched(chunks)

    bench.backend.decode = slow


def test_what_was_slow_once_is_tried_again():
    bench = DraftHarness(FakeBackend(n_ctx=1024), script=RIGHT, lookup=False)
    for n in range(2, MAX_AHEAD + 1):
        bench.engine._decoder.cost.observe(Load(n_ahead=n), 20.0)
    one = task(0, PROMPT, n_predict=900)
    bench.drafter.answers[0] = plain(one, FakeBackend(n_ctx=1024)).tokens(0)
    bench.run(one)
    assert bench.tokens(0) == bench.drafter.answers[0]
    assert bench.drafts


def test_a_draft_model_that_does_not_pay_is_left_alone():
    """Not only are its drafts not used: it evaluates nothing."""
    bench = DraftHarness(FakeBackend(n_ctx=1024), script=RIGHT, lookup=False)
    bench.drafter.token_ms = 50.0
    bench.drafter.catch_up = lambda *_: pytest.fail("it was asked to follow")
    bench.run(task(0, PROMPT, n_predict=900))
    assert not bench.drafts


def test_every_stream_gets_a_token_in_every_step():
    all_tasks = [task(id, [1 + id] * 9, n_predict=40) for id in range(3)]
    bench = DraftHarness(FakeBackend(n_seq=4), script=[(3, 1), (0, 0), None, (16, 0)], lookup=False)
    bench.drafter.answers = {one.id: plain(one, FakeBackend()).tokens(one.id) for one in all_tasks}
    for one in all_tasks:
        bench.engine.handle(one)
    while not all(bench.tokens(id) for id in range(3)):
        bench.engine.step()
    bench.engine.handle(task(3, [9] * 200, n_predict=1))
    for _ in range(4):
        before = [len(bench.tokens(id)) for id in range(3)]
        n_evaluated = len(bench.backend.sequences[3])
        bench.engine.step()
        bench.check_mirrors()
        assert all(len(bench.tokens(id)) > n or bench.of(id, Done) for id, n in enumerate(before))
        assert len(bench.backend.sequences[3]) > n_evaluated or bench.of(3, Done)
    bench.run()
    assert [bench.tokens(id) for id in range(3)] == list(bench.drafter.answers.values())


# Who gets none.


def test_no_drafts_for_who_wants_none():
    one = task(0, PROMPT, n_predict=100, speculative=SpeculativeParams(n_max=0))
    bench = drafting(one, RepeatingBackend(), lookup=True)
    assert bench.drafts == []
    assert bench.done(0).timings.draft_n == 0


@pytest.mark.parametrize(("n_max", "n_min"), [(1, 0), (4, 0), (4, 4), (16, 7), (64, 0), (3, 4)])
def test_drafts_have_as_many_tokens_as_asked_for(n_max, n_min):
    one = task(0, PROMPT, n_predict=100, speculative=SpeculativeParams(n_max=n_max, n_min=n_min))
    bench = drafting(one, FakeBackend(), script=[(16, 0), (3, 2), (1, 0), (7, 0)])
    assert told(bench, 0) == told(plain(one, FakeBackend()), 0)
    if n_min > n_max:
        assert bench.drafts == []
    else:
        assert max(bench.sizes) == min(n_max, MAX_AHEAD - 1)
        assert min(bench.sizes) >= n_min


@pytest.mark.parametrize("n_ahead", [1, 2, 3, 7])
def test_no_more_tokens_at_once_than_round_as_one_by_one(n_ahead):
    bench = DraftHarness(FakeBackend(), script=RIGHT, lookup=False)
    bench.speculation.n_exact = n_ahead
    bench.drafter.answers[0] = plain(task(0, PROMPT, n_predict=60), FakeBackend()).tokens(0)
    bench.run(task(0, PROMPT, n_predict=60))
    assert max([0, *bench.sizes]) == n_ahead - 1
    assert bench.tokens(0) == bench.drafter.answers[0]


def test_a_model_that_cannot_cut_takes_drafts_back_to_a_mark():
    one = task(0, PROMPT, n_predict=100)
    bench = drafting(one, RepeatingBackend(can_cut=False), lookup=True)
    assert bench.drafts
    assert bench.tokens(0) == plain(one, RepeatingBackend()).tokens(0)


def test_a_sequence_with_gaps_and_planes_drafts_nothing():
    backend = RepeatingBackend()
    backend.is_whole, backend.has_planes = lambda seq: False, True
    one = task(0, PROMPT, n_predict=100)
    assert drafting(one, backend, lookup=True).drafts == []


def test_grouped_positions_draft_nothing():
    backend = RepeatingBackend(n_ctx=64)
    backend.compress = lambda *args: None
    one = task(0, PROMPT, n_predict=30)
    bench = DraftHarness(backend, lookup=True, grp_attn_n=2, grp_attn_w=256)
    bench.run(one)
    assert bench.drafts == []


@pytest.mark.parametrize("n_negative", [3, 16])
def test_guided_requests_draft_nothing(n_negative):
    """Neither the leader nor its follower, whatever repeats itself in their prompts."""
    guidance = Guidance(1.5, tuple([5, 6, 7, 8] * 4)[:n_negative])
    guided = task(0, [1, 2, 3] * 6, n_predict=60, guidance=guidance, constraint=grammar("abcd" * 15))
    other = task(1, [4, 5, 6] * 6, n_predict=60)
    with mock.patch(ALWAYS, as_long_as_possible):
        bench = DraftHarness(RepeatingBackend(n_seq=2), script=None)
        bench.run(guided, other)
    assert not failures(bench)
    assert bench.done(0).timings.draft_n == 0
    assert bench.done(1).timings.draft_n > 0
    assert told(bench, 0) == told(plain(guided, RepeatingBackend(n_seq=2)), 0)
    assert told(bench, 1) == told(plain(other, RepeatingBackend()), 1)


# What can go wrong.


def test_a_draw_that_goes_wrong_inside_a_draft_is_one_request_s_end(capsys):
    all_tasks = [task(id, [1 + id] * 9, n_predict=40) for id in range(2)]
    bench = DraftHarness(FakeBackend(), script=RIGHT, lookup=False)
    bench.drafter.answers = {one.id: plain(one, FakeBackend()).tokens(one.id) for one in all_tasks}
    open_sampler = bench.backend.open_sampler

    def open_bad(params, prompt, grammar=None):
        sampler = open_sampler(params, prompt)
        sample = sampler.sample
        if prompt[0] == 1:
            sampler.sample = lambda logits, index: 1 / 0 if index == 5 else sample(logits, index)
        return sampler

    bench.backend.open_sampler = open_bad
    bench.run(*all_tasks)
    assert len(bench.of(0, Failed)) == 1
    assert bench.tokens(0) == bench.drafter.answers[0][:5]
    assert bench.tokens(1) == bench.drafter.answers[1]
    assert bench.backend.sequences[0] == []
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_decode_that_fails_takes_only_its_own_draft_along():
    all_tasks = [task(id, [1 + id] * 9, n_predict=40) for id in range(2)]
    bench = DraftHarness(FakeBackend(), script=RIGHT, lookup=False)
    bench.drafter.answers = {one.id: plain(one, FakeBackend()).tokens(one.id) for one in all_tasks}
    decode = bench.backend.decode

    def fail_first_draft(chunks):
        if any(chunk.logits > 1 for chunk in chunks):
            bench.backend.decode = decode
            raise CorralError("no such luck")
        return decode(chunks)

    bench.backend.decode = fail_first_draft
    bench.run(*all_tasks)
    assert [len(bench.of(id, Failed)) for id in range(2)] == [1, 0]
    assert bench.tokens(1) == bench.drafter.answers[1]


def test_a_draft_can_be_cut_short_for_a_cancel():
    bench = DraftHarness(FakeBackend(), script=[(0, 9)], lookup=False)
    decode = bench.backend.decode

    def cancelled(chunks):
        if chunks[0].logits > 1:
            bench.engine.abort_if_running(0)
        return decode(chunks)

    bench.backend.decode = cancelled
    bench.engine.handle(task(0, PROMPT, n_predict=40))
    while not bench.drafts:
        bench.engine.step()
        bench.check_mirrors()
    assert len(bench.tokens(0)) == 1
    assert len(bench.backend.sequences[0]) == len(PROMPT)
    assert not bench.backend.aborts
    bench.engine.handle(Cancel(0))
    assert not bench.engine.has_work


# Caches of what follows what.


def cached(path: Path, **options) -> DraftHarness:
    return DraftHarness(RepeatingBackend(), lookup=False, lookup_cache_dynamic=str(path), **options)


def test_the_dynamic_cache_learns_and_is_written_at_the_end(tmp_path):
    path = tmp_path / "dynamic.bin"
    one = task(0, PROMPT, n_predict=100)
    expected = told(plain(one, RepeatingBackend()), 0)
    first = cached(path)
    first.run(one)
    assert not path.exists()
    assert first.drafts == [], "nothing was known yet"
    first.engine.handle(Stop())
    learned = NgramCache.decode(path.read_bytes(), N_VOCAB)
    by_hand = NgramCache()
    by_hand.learn([*PROMPT, *first.tokens(0)])
    assert learned.encode() == by_hand.encode()
    second = cached(path)
    second.run(one)
    assert told(second, 0) == expected
    assert second.done(0).timings.draft_n_accepted > 20
    second.engine.handle(Stop())
    assert path.read_bytes() != by_hand.encode()
    assert [file.name for file in tmp_path.iterdir()] == ["dynamic.bin"]


def test_a_cached_prompt_is_not_learned_twice(tmp_path):
    bench = cached(tmp_path / "dynamic.bin")
    with mock.patch.object(NgramCache, "learn") as learn:
        bench.run(task(0, PROMPT * 3, n_predict=4))
        bench.run(task(1, PROMPT * 3, n_predict=4))
        bench.engine.handle(Stop())
    n_cached = bench.done(1).timings.cache_n
    assert n_cached > 30
    assert learn.call_args_list[0].args[0] == [*PROMPT * 3, *bench.tokens(0)]
    assert learn.call_args_list[1].args[0] == [*(PROMPT * 3)[n_cached:], *bench.tokens(1)]


def test_nothing_learned_nothing_written(tmp_path):
    path = tmp_path / "dynamic.bin"
    cached(path).engine.handle(Stop())
    assert list(tmp_path.iterdir()) == []


def test_the_dynamic_cache_is_written_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(speculation, "SAVE_S", -1.0)
    path = tmp_path / "dynamic.bin"
    bench = cached(path)
    bench.run(task(0, PROMPT, n_predict=10))
    bench.speculation._files.shutdown()
    assert len(NgramCache.decode(path.read_bytes(), N_VOCAB))


def test_streams_do_not_wait_for_a_cache_to_be_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(speculation, "SAVE_S", -1.0)
    encode, threads = NgramCache.encode, []

    def watched(self):
        threads.append(threading.current_thread())
        return encode(self)

    monkeypatch.setattr(NgramCache, "encode", watched)
    bench = cached(tmp_path / "dynamic.bin")
    bench.run(task(0, PROMPT, n_predict=10))
    bench.speculation._files.shutdown()
    assert threads
    assert threading.main_thread() not in threads


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    path = tmp_path / "dynamic.bin"
    bench = cached(path)
    bench.run(task(0, PROMPT, n_predict=10))
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        bench.engine.handle(Stop())
    assert bench.engine.is_stopped
    assert "--lookup-cache-dynamic: cannot write" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == ["dynamic.bin"]


def test_the_static_cache_helps_and_stays_as_it_is(tmp_path):
    path = tmp_path / "static.bin"
    one = task(0, PROMPT, n_predict=100)
    undrafted = plain(one, RepeatingBackend())
    cache = NgramCache()
    cache.learn([*PROMPT, *undrafted.tokens(0)])
    write_cache(str(path), cache.encode())
    before = path.read_bytes()
    bench = DraftHarness(RepeatingBackend(), lookup=False, lookup_cache_static=str(path))
    bench.run(one)
    bench.engine.handle(Stop())
    assert told(bench, 0) == told(undrafted, 0)
    assert bench.done(0).timings.draft_n_accepted > 20
    assert path.read_bytes() == before


@pytest.mark.parametrize("option", ["lookup_cache_static", "lookup_cache_dynamic"])
def test_a_file_that_is_no_cache_of_this_model_is_refused(tmp_path, option):
    path = tmp_path / "cache.bin"
    path.write_bytes(b"no cache")
    with pytest.raises(CorralError, match=option.replace("_", "-")):
        EngineHarness(FakeBackend(), **{option: str(path)})
    cache = NgramCache()
    cache.learn([1, 2, N_VOCAB])
    path.write_bytes(cache.encode())
    with pytest.raises(CorralError, match="outside this model's vocabulary"):
        EngineHarness(FakeBackend(), **{option: str(path)})


# When it is possible at all.


def open_speculation(backend: FakeBackend | None = None, **options) -> Speculation:
    return Speculation(backend or FakeBackend(), EngineSettings(model="fake", **options), CostModel())


def test_there_must_be_something_to_draft_from():
    settings = EngineSettings(model="fake")
    assert settings.drafts
    nothing = msgspec.structs.replace(settings, lookup=False)
    assert not nothing.drafts
    for name in ("model_draft", "lookup_cache_static", "lookup_cache_dynamic"):
        assert msgspec.structs.replace(nothing, **{name: "file"}).drafts


def test_exact_answers_need_a_probe_first():
    assert open_speculation().n_exact == 1
    assert open_speculation(draft_exact=False).n_exact == MAX_AHEAD
    backend = FakeBackend()
    backend.uses_gpu = True
    assert open_speculation(backend).n_exact == MAX_AHEAD


def test_a_pause_finds_out_how_much_may_be_drafted():
    bench = DraftHarness(RepeatingBackend())
    bench.speculation.n_exact = 1
    bench.engine.warm_up()
    assert len(bench.backend.batches) == 3, "a start waits for no more"
    assert not bench.engine.is_calibrated
    bench.engine.calibrate(lambda: False)
    assert bench.engine.is_calibrated
    assert bench.speculation.n_exact == MAX_AHEAD
    assert bench.backend.sequences == [[]] * 4
    one = task(0, PROMPT, n_predict=100)
    bench.drafts.clear()
    bench.run(one)
    assert bench.drafts
    assert told(bench, 0) == told(plain(one, RepeatingBackend()), 0)


def test_an_interrupted_pause_is_not_the_last_one():
    bench = DraftHarness(RepeatingBackend())
    bench.speculation.n_exact = 1
    bench.engine.warm_up()
    bench.engine.calibrate(lambda: len(bench.backend.batches) == 9)
    assert len(bench.backend.batches) == 9
    assert bench.backend.sequences == [[]] * 4
    assert (bench.engine.is_calibrated, bench.speculation.n_exact) == (False, 1)


@pytest.mark.parametrize("can_cut", [True, False])
def test_slots_have_the_same_after_a_pause(can_cut):
    told = []
    for has_pause in (False, True):
        bench = EngineHarness(FakeBackend(n_seq=1, can_cut=can_cut))
        bench.engine.warm_up()
        bench.run(task(0, PROMPT, n_predict=5))
        if has_pause:
            bench.engine.calibrate(lambda: False)
        held, sequences = bench.slots[0].tokens.view.tolist(), [list(one) for one in bench.backend.sequences]
        bench.run(task(1, [*held, 1, 2], n_predict=1))
        told.append((held, sequences, bench.done(1).timings.cache_n))
    assert told[0] == told[1]
    assert told[0][2] > 0


@pytest.fixture
def looped():
    """An engine that is warm, the inbox of its loop, and what the loop is to be started with."""
    bench = DraftHarness(RepeatingBackend())
    bench.speculation.n_exact = 1
    bench.engine.warm_up()
    inbox: loop.Inbox = queue.SimpleQueue()
    running = threading.Thread(target=loop.run, args=(bench.engine, inbox))
    yield bench, inbox, running.start
    inbox.put(Stop())
    running.join()


def test_an_engine_that_nobody_asks_is_calibrated(looped, monkeypatch):
    monkeypatch.setattr(loop, "_PAUSE_S", 0.01)
    bench, _, start = looped
    start()
    wait_until(lambda: bench.engine.is_calibrated)
    assert bench.speculation.n_exact == MAX_AHEAD


def test_no_request_waits_for_what_later_ones_have(looped, monkeypatch):
    monkeypatch.setattr(loop, "_PAUSE_S", 0.01)
    bench, inbox, start = looped
    for i in range(2):
        inbox.put(task(i, PROMPT, n_predict=100))
    start()
    wait_until(lambda: bench.of(1, Done))
    wait_until(lambda: bench.engine.is_calibrated)
    assert bench.done(0).timings.draft_n == bench.done(1).timings.draft_n == 0
    inbox.put(task(2, PROMPT, n_predict=100))
    wait_until(lambda: bench.of(2, Done))
    assert bench.done(2).timings.draft_n > 0
    assert bench.tokens(2) == bench.tokens(0)


@pytest.mark.parametrize("can_cut", [True, False])
def test_nothing_is_probed_in_vain(can_cut):
    bench = EngineHarness(FakeBackend(can_cut=can_cut), lookup=False)
    bench.engine.warm_up()
    assert bench.engine.is_calibrated
    assert len(bench.backend.batches) == 3
    assert bench.engine._speculation.n_exact == 1


def test_the_drafter_hears_of_the_end():
    bench = drafting(task(0, PROMPT, n_predict=5, id_slot=2), FakeBackend())
    assert bench.drafter.forgotten == [2]
