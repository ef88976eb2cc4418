"""Build an answer from the events of the message parser: text, reasoning and calls open, grow and close.

Messages and Responses have such parts. A call appears with the first part of its arguments. Until then it may
turn out to be text; afterwards it stays a call, which is cut off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from corral.api.render.warning import describe_diagnosis
from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Event, Reasoning
from corral.chat.reader import MessageParser

Events = list[dict[str, Any]]


class OpenCall(Protocol):
    """A call in progress."""

    @property
    def is_shown(self) -> bool: ...


CallT = TypeVar("CallT", bound=OpenCall)


class AnswerBuilder(ABC, Generic[CallT]):
    """Mutable. One part is closed before the next is opened. `is_cut`: inside a call."""

    def __init__(self, parser: MessageParser) -> None:
        self.warnings: list[str] = []
        self.is_cut = False
        self._parser = parser
        self._call: CallT | None = None
        self._skips_text = False  # of a call that is cut off

    def _apply(self, events: list[Event]) -> Events:
        return [out for event in events for out in self._apply_one(event)]

    def _apply_one(self, event: Event) -> Events:
        if isinstance(event, Content):
            skips, self._skips_text = self._skips_text, False
            return [] if skips else self._add_text(event.text)
        if isinstance(event, Reasoning):
            return self._add_reasoning(event.text)
        if isinstance(event, CallStarted):
            closed = self._close() if self._call is not None else []
            self._call = self._new_call(event.id, event.name)
            return closed
        if isinstance(event, CallArguments):
            assert self._call is not None
            return self._add_arguments(self._call, event.text)
        if isinstance(event, CallBroken):
            return self._break_call()
        if isinstance(event, Diagnosis):
            self.warnings.append(describe_diagnosis(event))
        return []

    def _break_call(self) -> Events:
        if self._call is None or not self._call.is_shown:
            self._call = None
            return []
        self.is_cut = self._skips_text = True
        return self._close("incomplete")

    @abstractmethod
    def _new_call(self, id: str, name: str) -> CallT:
        """Begin a call that is not shown yet."""

    @abstractmethod
    def _add_text(self, text: str) -> Events:
        """Add to the text; open it first if something else is open."""

    @abstractmethod
    def _add_reasoning(self, text: str) -> Events:
        """Add to the reasoning; open it first if something else is open."""

    @abstractmethod
    def _add_arguments(self, call: CallT, text: str) -> Events:
        """Add to the arguments of a call; show it first if that was not done yet."""

    @abstractmethod
    def _close(self, status: str = "completed") -> Events:
        """Close what is open, and a call that was not shown yet."""
