"""Functions a model may call, and whether it must."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from corral.core.params import SchemaCheck


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: `parameters` is the JSON Schema of its arguments, with the `check` that it needs,
    `definition` what the client sent, as the `index`-th of its tools."""

    name: str
    parameters: dict[str, Any]
    definition: dict[str, Any]
    index: int = 0
    check: SchemaCheck | None = None


class ToolChoice(enum.Enum):
    NONE = "none"  # no calls
    AUTO = "auto"  # the model decides
    REQUIRED = "required"  # call at least one function


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions of one request that may be called, and how many at once. `others` may not: the model only
    reads of them, so that its prompt is the same whichever of them are allowed."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice.NONE
    is_parallel: bool = False
    others: tuple[Tool, ...] = ()

    @property
    def is_possible(self) -> bool:
        return bool(self.tools) and self.choice is not ToolChoice.NONE

    @property
    def described(self) -> list[Tool]:
        """All functions that the model reads of, in the client's order."""
        return sorted((*self.tools, *self.others), key=lambda tool: tool.index)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def find(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


NO_TOOLS = ToolUse()
