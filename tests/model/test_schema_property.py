"""Random schemas, random weights, hot sampling: whatever is answered to its end follows its schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from corral.core.errors import CorralError, InvalidRequest
from corral.core.result import Done, Failed, StopType
from corral.generate.constraint import grammar_or_schema
from corral.grammar.json_schema import WHITESPACE
from tests.model.llama_harness import LlamaHarness, task
from tests.tools.hot_answer import hot, parse
from tests.tools.random_schema import draw_schema, drop_types

N_SCHEMAS = 250
N_ANSWERS = 4  # to each schema
N_PARALLEL = 8
N_PREDICT = 200
N_AT_ONCE = 10  # schemas
MIN_FINISHED = 700
MAX_REFUSED = 0.2

LAYOUTS = tuple(WHITESPACE)


@dataclass(frozen=True)
class Answer:
    """`meant`: the schema with all types, of which it may have left out those that its keywords imply."""

    seed: int
    schema: dict[str, Any]
    meant: dict[str, Any]
    layout: str
    text: str
    end: Done | Failed

    @property
    def is_finished(self) -> bool:
        return isinstance(self.end, Done) and self.end.stop_type is StopType.EOS


@pytest.fixture(scope="module")
def answers(models) -> list[Answer]:
    with LlamaHarness(models / "llama-bpe.gguf", n_parallel=N_PARALLEL, n_ctx_slot=256) as bench:
        batches = (range(n, min(n + N_AT_ONCE, N_SCHEMAS)) for n in range(0, N_SCHEMAS, N_AT_ONCE))
        return [answer for seeds in batches for answer in ask(bench, seeds)]


@pytest.fixture(scope="module")
def finished(answers) -> list[Answer]:
    return [answer for answer in answers if answer.is_finished]


def ask(bench: LlamaHarness, seeds: range) -> list[Answer]:
    (quote,) = bench.backend.vocab.tokenize('"', False, False)
    asked = [
        (seed * N_ANSWERS + i, schema_of(seed), LAYOUTS[(seed + i) % len(LAYOUTS)])
        for seed in seeds
        for i in range(N_ANSWERS)
    ]
    bench.events.clear()
    for id, schema, layout in asked:
        try:
            constraint = grammar_or_schema("", schema, layout)
        except InvalidRequest as error:
            bench.events.append(Failed(id, error.info()))
        else:
            prompt = bench.prompt(8, id)
            bench.engine.handle(task(id, prompt, hot(id, quote), N_PREDICT, constraint=constraint))
    bench.run()
    ends = {id: bench.of(id, Done) + bench.of(id, Failed) for id, _, _ in asked}
    assert all(len(end) == 1 for end in ends.values())
    return [
        Answer(id // N_ANSWERS, schema, draw_schema(id // N_ANSWERS), layout, bench.text(id), ends[id][0])
        for id, schema, layout in asked
    ]


def schema_of(seed: int) -> dict[str, Any]:
    """Every other one without the types that its keywords imply."""
    schema = draw_schema(seed)
    return drop_types(schema, seed) if seed % 2 else schema


def test_most_schemas_can_be_enforced_and_refusals_say_why(answers):
    refused = {a.seed: a.end.error for a in answers if isinstance(a.end, Failed)}
    assert len(refused) <= MAX_REFUSED * N_SCHEMAS
    for seed, error in refused.items():
        assert CorralError.from_info(error).status == 400, seed
        assert "cannot be enforced: " in error.message, error.message


def test_finished_answers_follow_their_schema(finished):
    checker = Draft202012Validator.FORMAT_CHECKER
    invalid = [
        (answer.seed, answer.text, error.message)
        for answer in finished
        for schema in (answer.schema, answer.meant)
        for error in Draft202012Validator(schema, format_checker=checker).iter_errors(parse(answer.text))
    ]
    assert not invalid
    assert sum(answer.schema != answer.meant for answer in finished) > MIN_FINISHED // 3
    assert len(finished) >= MIN_FINISHED


def test_answers_that_were_cut_say_so(answers):
    for answer in answers:
        if isinstance(answer.end, Done):
            assert answer.end.stop_type in (StopType.EOS, StopType.LIMIT)
            if not answer.end.truncated_grammar:
                parse(answer.text)
            assert not (answer.is_finished and answer.end.truncated_grammar)


def test_every_layout_came_to_an_end(finished):
    n_of = Counter(answer.layout for answer in finished)
    assert min(n_of[layout] for layout in LAYOUTS) > 50
    for answer in finished:
        if answer.layout == "compact":
            assert "\n" not in answer.text, answer


def test_declared_properties_come_once_and_in_their_order(finished):
    n_objects = 0
    for answer in finished:
        walk = _Walk(answer.schema)
        value = parse(answer.text, object_pairs_hook=tuple)
        for names, declared in walk.objects(answer.schema, value, parse(answer.text)):
            n_objects += 1
            assert names == [name for name in declared if name in names], (answer.seed, answer.text)
    assert n_objects > MIN_FINISHED


class _Walk:
    """Goes through an answer along its schema, to every object whose properties are declared."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._validator = Draft202012Validator(root)

    def objects(self, schema: Any, written: Any, value: Any) -> Iterator[tuple[list[str], list[str]]]:
        """The declared names as they were written, and as the schema has them."""
        if not isinstance(schema, dict):
            return
        for part in self._same(schema, value):
            yield from self.objects(part, written, value)
        if isinstance(value, dict) and "const" not in schema and "enum" not in schema:
            declared = schema.get("properties", {})
            yield [name for name, _ in written if name in declared], list(declared)
            for name, inner in written:
                if name in declared:
                    yield from self.objects(declared[name], inner, value[name])
        if isinstance(value, list):
            prefix = schema.get("prefixItems", [])
            for i, inner in enumerate(written):
                part = prefix[i] if i < len(prefix) else schema.get("items")
                yield from self.objects(part, inner, value[i])

    def _same(self, schema: dict[str, Any], value: Any) -> list[Any]:
        """The other schemas that apply to the same value."""
        parts = list(schema.get("allOf", []))
        for part in schema.get("anyOf", []) + schema.get("oneOf", []):
            if self._validator.evolve(schema=part).is_valid(value):
                parts.append(part)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2].replace("~1", "/").replace("~0", "~")
            parts.append(self._root["$defs"][name])
        return parts
