"""Requests with the same prompt, and requests with a grammar, on the fake backend."""

from __future__ import annotations

import msgspec
import pytest

from corral.core.result import Admitted, Failed, StopType
from corral.core.task import Cancel
from tests.tools.failure import status_of
from tests.unit.engine_harness import PROMPT, EngineHarness, alone, grammar, task
from tests.unit.fake import FakeBackend


@pytest.mark.parametrize("n_prompt", [1, 9, 41, 100])
@pytest.mark.parametrize("options", [{}, {"can_cut": False}, {"mixes_batches": True}])
def test_one_prompt_is_evaluated_once_for_all_who_ask_it(n_prompt, options):
    bench = EngineHarness(FakeBackend(**options))
    prompt = [3] * n_prompt
    bench.run(*(task(i, prompt, seed=i) for i in range(4)))
    n_evaluated = sum(len(c.tokens) for batch in bench.backend.batches for c in batch)
    assert n_evaluated == n_prompt + 4 * 7
    for i in range(4):
        assert bench.tokens(i) == alone(task(i, prompt, seed=i))
    assert sorted(bench.of(i, Admitted)[0].n_cached for i in range(4)) == [0, *[n_prompt] * 3]


def test_more_twins_than_slots_reuse_what_is_there():
    bench = EngineHarness(FakeBackend(n_seq=2))
    bench.run(*(task(i, PROMPT, seed=i) for i in range(5)))
    for i in range(5):
        assert bench.tokens(i) == alone(task(i, PROMPT, seed=i))
    assert bench.backend.n_prompt_tokens_evaluated < 2 * len(PROMPT)


def test_twins_go_on_without_the_first():
    bench = EngineHarness(FakeBackend(n_ubatch=16))
    for i in range(3):
        bench.engine.handle(task(i, PROMPT, seed=i))
    bench.engine.step()
    bench.engine.handle(Cancel(0))
    bench.run()
    assert bench.tokens(0) == []
    for i in (1, 2):
        assert bench.tokens(i) == alone(task(i, PROMPT, seed=i))


def test_a_twin_that_goes_wrong_is_alone_with_it(capsys):
    bench = EngineHarness()
    open_sampler = bench.backend.open_sampler

    def open_bad(params, prompt, grammar=None):
        sampler = open_sampler(params, prompt)
        if params.seed == 1:
            sampler.sample = lambda logits, index: 1 / 0
        return sampler

    bench.backend.open_sampler = open_bad
    bench.run(*(task(i, PROMPT, seed=i) for i in range(3)))
    assert [len(bench.of(i, Failed)) for i in range(3)] == [0, 1, 0]
    assert bench.tokens(2) == alone(task(2, PROMPT, seed=2))
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_whoever_wants_no_cache_gets_none():
    bench = EngineHarness()
    bench.run(*(task(i, PROMPT, seed=i, cache_prompt=False) for i in range(2)))
    assert bench.backend.n_prompt_tokens_evaluated == 2 * len(PROMPT)


def test_a_grammar_writes_the_answer_and_ends_it():
    bench = EngineHarness()
    bench.run(task(0, PROMPT, n_predict=-1, constraint=grammar("hello")), task(1, PROMPT[:5]))
    assert bench.text(0) == "hello"
    assert bench.done(0).stop_type is StopType.EOS
    assert not bench.done(0).truncated_grammar
    assert bench.tokens(1) == alone(task(1, PROMPT[:5]))


def test_an_answer_cut_short_says_so():
    bench = EngineHarness()
    bench.run(task(0, PROMPT, n_predict=3, constraint=grammar("hello")))
    assert bench.text(0) == "hel"
    assert bench.done(0).stop_type is StopType.LIMIT
    assert bench.done(0).truncated_grammar


def test_a_wrong_grammar_fails_before_anything_is_evaluated():
    bench = EngineHarness()
    bench.run(task(0, PROMPT, constraint=grammar("wrong")))
    (failed,) = bench.of(0, Failed)
    assert status_of(failed) == 400
    assert bench.backend.batches == []


def test_a_grammar_that_only_helps_may_be_left_out():
    bench = EngineHarness()
    bench.run(task(0, PROMPT, constraint=msgspec.structs.replace(grammar("wrong"), is_needed=False)))
    assert bench.tokens(0) == alone(task(0, PROMPT))


def test_who_waits_for_a_grammar_can_be_cancelled():
    bench = EngineHarness()
    bench.engine.handle(task(0, PROMPT, constraint=grammar("hello")))
    bench.engine.handle(Cancel(0))
    assert not bench.engine.has_work
    assert bench.events == []


def test_a_lost_engine_goes_on_in_the_grammar():
    one = task(0, PROMPT, n_predict=-1, constraint=grammar("hello"))
    bench = EngineHarness()
    bench.run(one)
    tokens = bench.tokens(0)
    for n in range(len(tokens)):
        later = EngineHarness()
        later.run(type(one)(id=0, prompt=one.prompt, params=one.params, resume=tokens[:n]))
        assert later.tokens(0) == tokens[n:]
