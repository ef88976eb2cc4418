"""The system prompt of the command line: read before the model is loaded, and tokenized as soon as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from corral.api.system_prompt import (
    FIELD,
    SystemPrompt,
    SystemText,
    parse_system_prompt,
    tokenize_system_prompt,
)
from corral.api.vocab import Vocab
from corral.core.errors import CorralError, InvalidRequest

_OPTION = "--system-prompt-file"


def read_system_prompt(path: str) -> SystemText | None:
    """What a file holds; None: there is no file."""
    if not path:
        return None
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorralError(f"cannot read {_OPTION}: {error}") from None
    try:
        return parse_system_prompt(_content(text))
    except InvalidRequest as error:
        raise CorralError(f"{_OPTION} {path}: {error.message}") from None


def tokenize_system_file(text: SystemText, vocab: Vocab, n_ctx: int) -> SystemPrompt:
    try:
        return tokenize_system_prompt(text, vocab, n_ctx)
    except InvalidRequest as error:
        raise CorralError(f"{_OPTION}: {error.message}") from None


def _content(text: str) -> Any:
    """A JSON object, or the one that a request would hold; anything else is a prompt as it is."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value.get(FIELD, value) if isinstance(value, dict) else text
