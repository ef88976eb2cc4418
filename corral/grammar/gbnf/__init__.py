"""GBNF, llama.cpp's grammar format, as Lark for llguidance: `parser` reads and checks it, `lark` writes it.

GBNF has only characters, while Lark matches terminals greedily: `fold`, `automaton` and `flow` find
terminals for which both mean the same.
"""

from __future__ import annotations

from corral.grammar.gbnf.parser import gbnf_to_lark

__all__ = ["gbnf_to_lark"]
