"""Options: grammars and JSON Schema."""

from __future__ import annotations

from typing import get_args

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse
from corral.core.params import JsonWhitespace

OPTIONS = (
    Option(
        ("--grammar",),
        "GBNF grammar of answers, unless a request brings its own",
        "GRAMMAR",
        parse=value.grammar,
    ),
    Option(("--grammar-file",), "file with such a grammar", path=PathUse.TEXT),
    Option(
        ("-j", "--json-schema"),
        "JSON Schema of answers, unless a request brings its own; {} is any JSON",
        "SCHEMA",
        parse=value.json_text,
    ),
    Option(
        ("--json-whitespace",),
        "layout of JSON that follows a schema: compact, spaced, or flexible, where the model decides",
        "LAYOUT",
        choices=get_args(JsonWhitespace),
    ),
)
