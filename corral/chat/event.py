"""Events of a chat answer, parsed from generated text."""

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
    """An announced call turned out not to be one; its whole text follows as content."""

    index: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why text that looked like a tool call is content."""

    reason: str


Event: TypeAlias = Content | Reasoning | CallStarted | CallArguments | CallBroken | Diagnosis
