"""A family of chat models: how to recognize its template, constrain its tool calls and parse its answers."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.chat.grammar import Grammar
from corral.chat.reader import Reader, ReaderSteps
from corral.chat.tool import ToolUse
from corral.core.answer_id import draw_bytes, draw_hex

_ID_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Format:
    """One family.

    `parse` reads an answer that may contain tool calls, after any reasoning. `trigger` is the text that
    starts calls, and `calls` the grammar of what follows it. A required call follows both from the start,
    after what `lead` allows; an optional call follows `calls` once the trigger was generated. `markers`:
    texts that `parse` recognizes; control tokens among them must appear in the output.
    """

    name: str
    matches: Callable[[str], bool]
    parse: Callable[[Reader, ToolUse], ReaderSteps[None]]
    calls: Callable[[Grammar, ToolUse], str]
    trigger: tuple[str, ...] = ()
    is_trigger_first: bool = False  # the trigger applies only at the start of an answer
    lead: Callable[[Grammar], str] = lambda _: ""
    wrap: Callable[[Grammar, str], str] = lambda _, answer: answer  # the grammar of an answer without calls
    is_always_bound: bool = False  # `calls` also covers answers without calls
    markers: tuple[str, ...] = ()
    options: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda _: {}  # extra template variables
    instruction: str = ""  # for models that were not trained to call tools
    wraps_content: bool = False  # answers without tools must be parsed too
    reads_reasoning: bool = False  # the format parses reasoning itself
    has_short_ids: bool = False
    has_single_arguments: bool = False  # each argument of a call is written by itself, not as one JSON object


def has_all(*texts: str) -> Callable[[str], bool]:
    return lambda source: all(text in source for text in texts)


def long_id() -> str:
    return f"call_{draw_hex(12)}"


def short_id() -> str:
    """Return an id of nine letters, as some templates require."""
    return "".join(_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in draw_bytes(9))
