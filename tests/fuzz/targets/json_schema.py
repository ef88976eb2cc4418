"""JSON Schemas of requests, up to the first mask."""

from __future__ import annotations

import orjson

from corral.core.errors import InvalidRequest
from corral.generate.constraint import grammar_or_schema
from corral.grammar.json_schema import prepare_schema
from corral.grammar.keyword import KEYWORDS
from tests.fuzz.constraint import compile_constraint
from tests.fuzz.target import Limit, Target
from tests.fuzz.value_mutation import mutated_values
from tests.tools.hard_schema import draw_hard_schema
from tests.tools.random_schema import draw_schema


def parse(data: bytes) -> None:
    schema = orjson.loads(data)
    constraint = grammar_or_schema("", schema, "compact")
    if constraint is not None:
        compile_constraint(constraint)
    prepare_schema(schema, "json_schema", "flexible", is_lenient=True)


PLAIN = [draw_schema(seed) for seed in range(12)]
SEEDS = [orjson.dumps(schema) for schema in PLAIN]
VALUES = [*PLAIN, *(draw_hard_schema(seed) for seed in range(12))]
LIMIT = Limit(cpu_s=10.0, mib=400.0)
TARGET = Target(
    "json_schema", parse, SEEDS, mutated_values(VALUES, sorted(KEYWORDS)), (InvalidRequest,), LIMIT
)
