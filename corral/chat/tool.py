"""Functions a model may call, and whether it must."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: `parameters` is the JSON Schema of its arguments, `definition` what the client sent."""

    name: str
    parameters: dict[str, Any]
    definition: dict[str, Any]


class ToolChoice(enum.Enum):
    NONE = "none"  # answer in words
    AUTO = "auto"  # as the model sees fit
    REQUIRED = "required"  # call at least one function


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions of one request that may be called, and how many at once."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice.NONE
    is_parallel: bool = False

    @property
    def is_possible(self) -> bool:
        return bool(self.tools) and self.choice is not ToolChoice.NONE

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def find(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


NO_TOOLS = ToolUse()
