"""Tokens that a grammar leaves no choice about, on the fake backend: capitals follow by themselves."""

from __future__ import annotations

import pytest

from corral.core.params import SamplingParams
from corral.core.result import Done, StopType, Tokens
from corral.core.task import Task
from tests.unit.engine_harness import PROMPT, EngineHarness, alone, grammar, task
from tests.unit.fake import FakeBackend

TEXT = "aBCDEFGHbcIJd" + "KLMNOPQRSTUVWXYZ" * 3 + "e"
N_FREE = sum(letter.islower() for letter in TEXT)


def bound(id: int, text: str = TEXT, n_predict: int = -1, **params) -> Task:
    return task(id, PROMPT, n_predict=n_predict, constraint=grammar(text), **params)


@pytest.mark.parametrize("options", [{}, {"mixes_batches": True}, {"n_ubatch": 16}, {"can_cut": False}])
def test_forced_tokens_cost_no_decode_of_their_own(options):
    bench = EngineHarness(FakeBackend(**options))
    bench.run(bound(0))
    assert bench.text(0) == TEXT
    done = bench.done(0)
    assert done.stop_type is StopType.EOS
    assert done.timings.predicted_n == len(TEXT)
    assert done.timings.forced_n == len(TEXT) - N_FREE
    n_answer_batches = len(bench.backend.batches) - -(-len(PROMPT) // bench.backend.n_ubatch)
    assert n_answer_batches <= N_FREE + 3  # a run longer than a physical batch takes several


def test_neighbours_get_their_tokens_meanwhile():
    others = [task(i, [i] * 20, n_predict=30) for i in range(1, 4)]
    bench = EngineHarness()
    bench.run(bound(0), *others)
    assert bench.text(0) == TEXT
    for other in others:
        assert bench.tokens(other.id) == alone(other)


@pytest.mark.parametrize("n_predict", [1, 2, 5, 8, 9, 20, len(TEXT) - 1])
def test_the_budget_counts_forced_tokens(n_predict):
    bench = EngineHarness()
    bench.run(bound(0, n_predict=n_predict))
    assert bench.text(0) == TEXT[:n_predict]
    assert bench.done(0).truncated_grammar


@pytest.mark.parametrize("room", [2, 3, 7, 9, 30])
def test_forced_tokens_stay_inside_the_context(room):
    bench = EngineHarness(FakeBackend(n_ctx=len(PROMPT) + room))
    bench.run(bound(0))
    assert TEXT.startswith(bench.text(0))
    assert bench.done(0).truncated
    assert bench.done(0).truncated_grammar
    shifting = EngineHarness(FakeBackend(n_ctx=len(PROMPT) + room), context_shift=True)
    shifting.run(bound(0))
    assert shifting.text(0) == TEXT


def test_a_stop_string_in_forced_text_ends_it():
    bench = EngineHarness()
    bench.run(bound(0, stop=("EFG",)))
    assert bench.text(0) == "aBCD"
    assert bench.done(0).stop_type is StopType.WORD
    assert bench.done(0).timings.predicted_n == len("aBCDEFG")


def test_probabilities_are_those_of_real_logits():
    sampling = SamplingParams(seed=1, n_probs=1)
    bench = EngineHarness()
    bench.run(Task(id=0, prompt=PROMPT, params=bound(0).params))
    with_probs = EngineHarness()
    params = type(bound(0).params)(sampling=sampling, constraint=grammar(TEXT))
    with_probs.run(Task(id=0, prompt=PROMPT, params=params))
    assert with_probs.text(0) == bench.text(0)
    assert with_probs.done(0).timings.forced_n == 0


def test_a_lost_engine_goes_on_behind_any_delivered_token():
    bench = EngineHarness()
    bench.run(bound(0))
    whole = bench.tokens(0)
    events = bench.of(0, Tokens)
    for n in range(len(events)):
        delivered = [token for event in events[:n] for token in event.tokens]
        later = EngineHarness()
        later.run(Task(id=0, prompt=PROMPT, params=bound(0).params, resume=delivered))
        assert delivered + later.tokens(0) == whole
        text = "".join(e.text for e in events[:n])
        assert text + later.text(0) == TEXT
        assert len(later.of(0, Done)) == 1
