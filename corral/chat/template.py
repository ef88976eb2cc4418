"""Chat templates as their users know them: what renders a conversation, and how that fails.

`jinja_template.py` has the sandbox. Only the renderer process loads it, because jinja takes long to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from corral.core.errors import InvalidRequest

RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")


class TemplateError(InvalidRequest):
    """The template refuses a conversation, or fails on it."""


class TemplateLimit(TemplateError):
    """The template takes more time, memory or text than any conversation needs."""


class Template(Protocol):
    """A template that can be rendered, here or in another process."""

    source: str

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str: ...
