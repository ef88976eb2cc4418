"""What a chat answer is made of, as it is read from generated text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBroken:
    """What was announced as a call is none; its whole text follows as content."""

    index: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why something that looked like a tool call is content."""

    reason: str


Event: TypeAlias = Content | Reasoning | CallStarted | CallArguments | CallBroken | Diagnosis
