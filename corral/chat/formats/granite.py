"""Granite 3: `<|tool_call|>[{"name": ..., "arguments": ...}]`."""

from __future__ import annotations

from corral.chat.format import has_all
from corral.chat.listed import listed_format

FORMAT = listed_format("granite", has_all("<|tool_call|>", "<|start_of_role|>"), "<|tool_call|>")
