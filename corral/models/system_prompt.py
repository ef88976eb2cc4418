"""Read `--system-prompt-file` before the model is loaded, and tokenize it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from corral.core.errors import CorralError, InvalidRequest
from corral.generate.system_prompt import (
    FIELD,
    SystemPrompt,
    SystemText,
    parse_system_prompt,
    tokenize_system_prompt,
)
from corral.generate.vocab import Vocab

_OPTION = "--system-prompt-file"


def read_system_prompt(path: str) -> SystemText | None:
    """Parse the file; None without a file."""
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
    """Return the JSON object of the file, or the field in it that a request would have; other text is the
    prompt itself."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value.get(FIELD, value) if isinstance(value, dict) else text
