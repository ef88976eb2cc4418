"""Seed-OSS: the tags of Qwen3-Coder between marks of its own, values without line breaks around them."""

from __future__ import annotations

from corral.chat.formats.qwen3_coder import function_format

FORMAT = function_format("seed-oss", "<seed:tool_call>", "</seed:tool_call>", gap="")
