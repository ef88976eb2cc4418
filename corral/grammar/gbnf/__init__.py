"""GBNF, llama.cpp's grammar format, as Lark for llguidance: `parser` reads and checks it, `lark` writes it.

GBNF knows characters only, Lark reads terminals greedily: `fold`, `automaton` and `flow` find terminals with
which both mean the same.
"""

from __future__ import annotations

from corral.grammar.gbnf.parser import gbnf_to_lark

__all__ = ["gbnf_to_lark"]
