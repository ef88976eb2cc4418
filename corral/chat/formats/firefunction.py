"""Firefunction v2: ` functools[{"name": ..., "arguments": ...}]`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from corral.chat.format import has_all
from corral.chat.listed import listed_format


def _options(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"functions": json.dumps(tools, ensure_ascii=False, indent=2) if tools else ""}


FORMAT = dataclasses.replace(
    listed_format("firefunction", has_all(" functools["), " functools"), options=_options
)
