"""Every command-line option, said once: names, environment variable, type, default, help, where it goes."""

from __future__ import annotations

from corral.cli.options import (
    chat,
    context,
    embedding,
    media,
    model,
    modifier,
    scheduling,
    server,
    speculative,
    state,
    structured,
)
from corral.cli.options.option import Option

GROUPS: dict[str, tuple[Option, ...]] = {
    "model": model.OPTIONS,
    "context": context.OPTIONS,
    "modifiers": modifier.OPTIONS,
    "images and sounds": media.OPTIONS,
    "speculative decoding": speculative.OPTIONS,
    "scheduling": scheduling.OPTIONS,
    "conversation state": state.OPTIONS,
    "chat": chat.OPTIONS,
    "structured output": structured.OPTIONS,
    "embeddings": embedding.OPTIONS,
    "server": server.OPTIONS,
}

OPTIONS = tuple(option for group in GROUPS.values() for option in group)
