"""Phi-4 mini: `<|tool_call|>[{"name": ..., "arguments": ...}]<|/tool_call|>`."""

from __future__ import annotations

from corral.chat.format import has_all
from corral.chat.listed import listed_format

FORMAT = listed_format("phi4", has_all("<|tool|>", "<|/tool|>"), "<|tool_call|>", "<|/tool_call|>")
