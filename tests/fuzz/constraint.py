"""Compile grammars and schemas as the engine does, for a vocabulary of single bytes."""

from __future__ import annotations

from typing import Any, cast

from llguidance import LLTokenizer

from corral.core.params import Constraint
from corral.llama.constraint import Compiler


class ByteVocab:
    n_tokens = 257
    eog_tokens = frozenset({256})

    def token_of(self, text: str) -> int | None:
        return 65 if text == "<a>" else None


def compile_constraint(constraint: Constraint) -> None:
    """Raises what the engine answers a request with."""
    compiler = Compiler(cast(Any, ByteVocab()))
    compiler._tokenizer = LLTokenizer("byte")
    try:
        compiler.compile(constraint).allowed()
    finally:
        compiler._masks.shutdown()
