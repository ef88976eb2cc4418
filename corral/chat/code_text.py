"""Tool calls that are programs: for a function that runs code, models write the code instead of JSON."""

from __future__ import annotations

import json

from corral.chat.reader import Reader, ReaderSteps
from corral.chat.tool import ToolUse

RUNNERS = ("python", "ipython", "code_interpreter")


def find_runner(use: ToolUse) -> str | None:
    """Return the function that runs code, if there is one."""
    return next((name for name in use.names if name in RUNNERS), None)


def read_code(reader: Reader) -> ReaderSteps[None]:
    """Read all remaining text as the code of the open call."""
    parts: list[str] = []
    yield from reader.rest(parts.append)
    code_arguments(reader, "".join(parts))


def code_arguments(reader: Reader, code: str) -> None:
    reader.arguments(json.dumps({"code": code}, ensure_ascii=False))
