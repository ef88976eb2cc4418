"""What the front asks of the template process, and what it answers."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.core.errors import ErrorInfo


class Rendering(msgspec.Struct, frozen=True):
    """A template and the conversation to render; without messages it is only compiled."""

    source: str
    bos_token: str
    eos_token: str
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    options: dict[str, Any] = {}


class Rendered(msgspec.Struct, frozen=True):
    """`error`: why there is no text."""

    text: str = ""
    error: ErrorInfo | None = None


decode_rendering = msgspec.msgpack.Decoder(Rendering).decode
decode_rendered = msgspec.msgpack.Decoder(Rendered).decode


def max_cpu_s(n_bytes: int) -> float:
    """Return the CPU time that a rendering with a frame of this size may take."""
    return 1.0 + n_bytes / (512 << 10)
