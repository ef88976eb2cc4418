"""A family of chat models: how its template is told, how it writes tool calls, how its answers are read."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.chat.grammar import Grammar
from corral.chat.reader import Reader, ReaderSteps
from corral.chat.tool import ToolUse

_ID_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Format:
    """`parse` reads an answer that may call tools, behind its reasoning if there was any.

    `trigger` is how calls begin, and `calls` the grammar of what follows it. An answer that must call follows
    both from the start, behind what `lead` allows; one that may call follows `calls` once it has written the
    trigger. `markers` are the texts that mean something to `parse`: control tokens among them have to appear.
    """

    name: str
    matches: Callable[[str], bool]
    parse: Callable[[Reader, ToolUse], ReaderSteps[None]]
    calls: Callable[[Grammar, ToolUse], str]
    trigger: tuple[str, ...] = ()
    is_trigger_first: bool = False  # it counts at the beginning of an answer only
    lead: Callable[[Grammar], str] = lambda _: ""
    wrap: Callable[[Grammar, str], str] = lambda _, answer: answer  # the grammar of an answer in words
    is_always_bound: bool = False  # `calls` covers answers without calls as well
    markers: tuple[str, ...] = ()
    options: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda _: {}  # more names for its template
    instruction: str = ""  # for models that were never told how to call
    wraps_content: bool = False  # answers without tools have to be read as well
    reads_reasoning: bool = False  # reasoning is the format's own affair
    has_short_ids: bool = False


def has_all(*texts: str) -> Callable[[str], bool]:
    return lambda source: all(text in source for text in texts)


def long_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Nine letters, as some templates insist on."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
