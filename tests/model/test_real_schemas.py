"""Schemas as real programs send them: none is refused, and answers that come to their end follow them."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from corral.core.errors import InvalidRequest
from corral.core.result import Done, Failed, StopType
from corral.generate.constraint import grammar_or_schema
from tests.model.llama_harness import LlamaHarness, task
from tests.tools.hard_schema import DRAFTS, draw_hard_schema
from tests.tools.hot_answer import hot, parse
from tests.tools.real_schemas import REAL

N_ANSWERS = 3
N_PREDICT = 240
N_RANDOM = 30
MIN_FINISHED = 0.5


@pytest.fixture(scope="module")
def harness(models):
    with LlamaHarness(models / "llama-bpe.gguf", n_parallel=8, n_ctx_slot=256) as bench:
        yield bench


def ask(bench: LlamaHarness, schema: Any) -> list[Any]:
    """The values of all answers that came to their end. Raises InvalidRequest."""
    (quote,) = bench.backend.vocab.tokenize('"', False, False)
    bench.events.clear()
    for id in range(N_ANSWERS):
        constraint = grammar_or_schema("", schema, ("compact", "spaced", "flexible")[id % 3])
        bench.engine.handle(task(id, bench.prompt(8, id), hot(id, quote), N_PREDICT, constraint=constraint))
    bench.run()
    for failed in (event for event in bench.events if isinstance(event, Failed)):
        raise InvalidRequest(failed.error.message)
    ends = {id: bench.of(id, Done)[0] for id in range(N_ANSWERS)}
    return [parse(bench.text(id)) for id, end in ends.items() if end.stop_type is StopType.EOS]


def check(schema: Any, value: Any) -> None:
    cls = validator_for(schema, Draft202012Validator)
    cls(schema, format_checker=cls.FORMAT_CHECKER).validate(value)
    assert jsonschema_rs.is_valid(schema, value, validate_formats=True), value


@pytest.mark.parametrize("name", REAL)
def test_real_schemas_are_followed(harness, name):
    for value in ask(harness, REAL[name]):
        check(REAL[name], value)


def test_most_answers_come_to_an_end(harness):
    n_finished = sum(len(ask(harness, schema)) for schema in REAL.values())
    assert n_finished > MIN_FINISHED * N_ANSWERS * len(REAL)


@pytest.mark.parametrize("draft", DRAFTS)
def test_random_schemas_with_hard_keywords_are_followed_or_refused(harness, draft):
    n_checked = 0
    for seed in range(N_RANDOM):
        schema = draw_hard_schema(seed, draft)
        try:
            values = ask(harness, schema)
        except InvalidRequest:
            continue
        for value in values:
            check(schema, value)
            n_checked += 1
    assert n_checked > N_RANDOM
