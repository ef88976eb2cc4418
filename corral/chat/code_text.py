"""Programs as tool calls: what a model writes for a function that runs code is not JSON."""

from __future__ import annotations

import json

from corral.chat.reader import Reader, ReaderSteps
from corral.chat.tool import ToolUse

RUNNERS = ("python", "ipython", "code_interpreter")


def find_runner(use: ToolUse) -> str | None:
    """The function that runs code, if one of them does."""
    return next((name for name in use.names if name in RUNNERS), None)


def read_code(reader: Reader) -> ReaderSteps[None]:
    """Everything that follows, as the code of the call that is open."""
    parts: list[str] = []
    yield from reader.rest(parts.append)
    code_arguments(reader, "".join(parts))


def code_arguments(reader: Reader, code: str) -> None:
    reader.arguments(json.dumps({"code": code}, ensure_ascii=False))
