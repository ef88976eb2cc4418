"""Answers that are checked while they grow, on a backend that writes lists of strings."""

from __future__ import annotations

import json

import jsonschema
import jsonschema_rs
import pytest

from corral.core.errors import CorralError
from corral.core.params import Guidance
from corral.core.result import Done, Failed, StopType, Tokens
from tests.tools.examples import is_quick, some
from tests.unit.checked_backend import UNIQUE, Guesser, ListBackend, checked_task
from tests.unit.engine_harness import EngineHarness

SEEDS = range(12 if is_quick() else 24)
STRINGS = {"type": "array", "items": {"type": "string"}}
SCHEMAS = {
    "unique": UNIQUE,
    "contains": {**STRINGS, "contains": {"pattern": "^b"}},
    "contains up to one": {**STRINGS, "contains": {"pattern": "^b"}, "maxContains": 1},
    "not an item": {**STRINGS, "items": {"type": "string", "not": {"pattern": "^ab"}}},
    "not as a whole": {**STRINGS, "not": {"contains": {"pattern": "^ab"}}},
    "one of": {
        "type": "array",
        "oneOf": [
            {"items": {"type": "string", "pattern": "a"}},
            {"items": {"type": "string", "pattern": "b"}},
        ],
        "minItems": 1,
    },
}


def answer(schema, seed: int, **options) -> EngineHarness:
    bench = EngineHarness(ListBackend(**options))
    bench.run(checked_task(0, schema, seed))
    return bench


def check(schema, value) -> None:
    jsonschema.validate(value, schema)
    assert jsonschema_rs.is_valid(schema, value)


@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize("name", SCHEMAS)
def test_what_ends_normally_is_valid(name, forces):
    schema, n_redrawn, n_finished = SCHEMAS[name], 0, 0
    for seed in SEEDS:
        bench = answer(schema, seed, forces=forces)
        n_redrawn += bench.backend.samplers[0].n_redrawn
        if bench.done(0).stop_type is StopType.EOS:
            n_finished += 1
            check(schema, json.loads(bench.text(0)))
        else:
            assert bench.done(0).stop_type is StopType.SCHEMA
            assert bench.done(0).violation is not None
    assert n_redrawn > 5
    assert n_finished > 0.9 * len(SEEDS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_tokens_of_a_stream_are_those_of_the_answer(name):
    for seed in SEEDS:
        bench = answer(SCHEMAS[name], seed)
        text = b"".join(map(bench.backend.vocab.piece, bench.tokens(0))).decode()
        assert text == bench.text(0)
        assert bench.done(0).timings.predicted_n == len(bench.tokens(0))


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_engine_that_continues_after_any_delivered_token_writes_the_same(name):
    for seed in range(12):
        bench = answer(SCHEMAS[name], seed)
        events = bench.of(0, Tokens)
        for n in some(range(len(events))):
            delivered = [token for event in events[:n] for token in event.tokens]
            later = EngineHarness(ListBackend())
            later.run(checked_task(0, SCHEMAS[name], seed, resume=delivered))
            assert delivered + later.tokens(0) == bench.tokens(0)
            assert "".join(event.text for event in events[:n]) + later.text(0) == bench.text(0)
            assert len(later.of(0, Done)) == 1


def test_neighbours_do_not_matter():
    alone = [answer(UNIQUE, seed).text(0) for seed in range(8)]
    bench = EngineHarness(ListBackend())
    bench.run(*(checked_task(seed, UNIQUE, seed) for seed in range(8)))
    assert [bench.text(seed) for seed in range(8)] == alone


def test_only_the_item_is_held_back():
    for seed in SEEDS:
        bench = answer(UNIQUE, seed)
        sent = ""
        for event in bench.of(0, Tokens):
            assert event.tokens or event.text
            sent += event.text
        items = json.loads(bench.text(0))
        if len(items) > 3:
            assert len(bench.of(0, Tokens)) >= len(items) - 1


def test_beyond_the_limit_the_answer_says_why():
    ends = []
    for seed in SEEDS:
        bench = EngineHarness(ListBackend(), schema_retries=0)
        bench.run(checked_task(0, UNIQUE, seed))
        ends.append(bench.done(0))
        if ends[-1].stop_type is StopType.SCHEMA:
            assert ends[-1].violation.keyword == "uniqueItems"
            assert ends[-1].violation.pointer == "#/uniqueItems"
            assert ends[-1].violation.instance.startswith("/")
        else:
            check(UNIQUE, json.loads(bench.text(0)))
    assert any(end.stop_type is StopType.SCHEMA for end in ends)
    assert any(end.stop_type is StopType.EOS for end in ends)


def test_models_that_cannot_take_tokens_back_refuse_as_before():
    bench = EngineHarness(ListBackend(can_cut=False))
    bench.run(checked_task(0))
    (failed,) = bench.of(0, Failed)
    assert CorralError.from_info(failed.error).status == 400
    assert "'uniqueItems' at #" in failed.error.message


@pytest.mark.parametrize("n_predict", [1, 2, 3, 5, 8, 13])
def test_the_budget_counts_what_is_kept(n_predict):
    for seed in range(12):
        bench = EngineHarness(ListBackend())
        bench.run(checked_task(0, UNIQUE, seed, n_predict=n_predict))
        assert len(bench.tokens(0)) <= n_predict
        whole = answer(UNIQUE, seed)
        if bench.done(0).stop_type is StopType.LIMIT:
            assert len(bench.tokens(0)) == n_predict
        else:
            assert bench.text(0) == whole.text(0)


@pytest.mark.parametrize("name", SCHEMAS)
def test_drafts_change_nothing(name, monkeypatch):
    monkeypatch.setattr("corral.engine.speculation.plan_length", lambda acceptance, n_max, *rest: n_max)
    n_accepted = 0
    for seed in SEEDS:
        one, plain = checked_task(0, SCHEMAS[name], seed), answer(SCHEMAS[name], seed, forces=False)
        backend = ListBackend(forces=False)
        backend.drafter = Guesser(len(one.prompt), plain.tokens(0))
        drafting = EngineHarness(backend, draft_exact=False)
        drafting.run(one)
        assert drafting.tokens(0) == plain.tokens(0)
        n_accepted += drafting.done(0).timings.draft_n_accepted
    assert n_accepted > len(SEEDS)


def test_both_of_a_guided_pair_go_back():
    n_redrawn = 0
    for seed in SEEDS:
        bench = EngineHarness(ListBackend())
        bench.run(checked_task(0, UNIQUE, seed, guidance=Guidance(2.0, (1, 2, 3))))
        n_redrawn += bench.backend.samplers[0].n_redrawn
        check(UNIQUE, json.loads(bench.text(0)))
    assert n_redrawn > 0
