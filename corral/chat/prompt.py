"""What a model's format is given of a conversation, and what it makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.chat.message import Message
from corral.chat.reasoning import ReasoningFormat
from corral.chat.tool import NO_TOOLS, ToolUse
from corral.core.params import SchemaCheck


@dataclass(frozen=True, slots=True)
class Chat:
    """The chat of a request: messages, tools and options of the answer.

    `schema`: the answer, unless it is a call, is JSON of this schema, with this `check`. `is_continued`: the
    last message is the beginning of the answer.
    """

    messages: list[Message]
    use: ToolUse = NO_TOOLS
    options: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    is_continued: bool = False
    enable_thinking: bool = True
    reasoning: ReasoningFormat = ReasoningFormat.AUTO
    schema: Any = None
    check: SchemaCheck | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """A grammar for the answer, from its start or, with a trigger, once the trigger was generated."""

    grammar: str
    trigger: str = ""
    is_trigger_first: bool = False
    is_answer_apart: bool = False  # calls do not begin like JSON
    reasoning: tuple[str, str] = ("", "")  # the tags of reasoning before it; an empty first one is open


@dataclass(frozen=True, slots=True)
class Prompt:
    """`is_thinking`: the answer starts inside reasoning."""

    text: str
    is_thinking: bool
