"""Calls as a JSON list after a marker: Granite 3, Phi-4 mini, Nemotron Nano v2, Firefunction v2."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, calls_of, literal, repeat, seq
from corral.chat.json_text import read_call, read_call_list
from corral.chat.reader import calls_parser
from corral.chat.tool import ToolUse


def _listed(name: str, texts: tuple[str, ...], begin: str, end: str = "") -> Format:
    """Define a family with `begin [{"name": ..., "arguments": ...}, ...] end`. Its template contains all of
    `texts`."""

    parse = calls_parser((begin,), lambda reader, *_: read_call_list(reader, read_call), end)

    def calls(g: Grammar, use: ToolUse) -> str:
        one = g.rule(calls_of(use, '{"name": "@", "arguments": ', "}"))
        return seq(literal("["), repeat(use, one, literal(", ")), literal("]"), g.mark(end) if end else "")

    markers = (begin, end) if end else (begin,)
    return Format(name, has_all(*texts), parse, calls, trigger=(begin,), markers=markers)


def _functions(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"functions": json.dumps(tools, ensure_ascii=False, indent=2) if tools else ""}


GRANITE = _listed("granite", ("<|tool_call|>", "<|start_of_role|>"), "<|tool_call|>")
PHI4 = _listed("phi4", ("<|tool|>", "<|/tool|>"), "<|tool_call|>", "<|/tool_call|>")
NEMOTRON = _listed("nemotron", ("<TOOLCALL>",), "<TOOLCALL>", "</TOOLCALL>")
FIREFUNCTION = dataclasses.replace(
    _listed("firefunction", (" functools[",), " functools"), options=_functions
)
